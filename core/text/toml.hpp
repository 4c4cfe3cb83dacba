#pragma once

#include <string>
#include <string_view>

#include "core/text/json.hpp"

namespace capstan {

/// Reads a TOML document. Members keep the order of the text, and every value its byte offset (that of its key, for
/// members of tables). Dates and times become errors: nothing of ours has them. Throws ConfigError that opens with
/// "<source>:<line>:<column>: "; safe for any input.
Json parse_toml(std::string_view text, const std::string& source);

}  // namespace capstan
