#pragma once

#include <string>
#include <string_view>

#include "core/schema/schema.hpp"
#include "core/text/json.hpp"

namespace capstan {

/// The JSON Schema of one key: every spelling of a value that the validator takes. `automatic`: "auto" too.
Json key_schema(const KeySpec& spec, bool automatic);

/// An object with these properties, comments, and nothing else.
Json closed_object(Json properties);

/// A regular expression that the text in any letter case matches as a whole.
std::string any_case_pattern(std::string_view text);

}  // namespace capstan
