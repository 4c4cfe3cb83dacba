#include "core/version.hpp"

namespace capstan {

const char* version() { return CAPSTAN_VERSION; }

}  // namespace capstan
