#pragma once

#include <string>
#include <string_view>

#include "core/text/json.hpp"

namespace capstan {

/// state.json's text. Numbers that JSON lacks (NaN, infinities) are written as {"$number": "nan"} and come back.
std::string state_text(const Json& state);

/// Throws RuntimeFault: `where`, then the defect.
Json parse_state(std::string_view text, const std::string& where);

}  // namespace capstan
