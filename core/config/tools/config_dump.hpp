#pragma once

#include <string>

#include "core/config/config.hpp"

namespace capstan {

/// Every value in force with its origin, a line each, sorted by key path: what dump_state shows. Secrets are left out.
std::string config_dump(const Config& config);

}  // namespace capstan
