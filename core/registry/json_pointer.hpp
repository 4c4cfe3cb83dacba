#pragma once

#include <string_view>

#include "core/text/json.hpp"

namespace capstan {

/// The value at an RFC 6901 pointer ("" the document, "/betas/0", "~1" a slash, "~0" a tilde), or null when there is
/// none. Throws std::invalid_argument for what is not a pointer.
const Json* resolve_pointer(const Json& document, std::string_view pointer);

}  // namespace capstan
