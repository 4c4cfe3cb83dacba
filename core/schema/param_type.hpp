#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/schema/schema.hpp"

namespace capstan {

/// The type of a parameter as manifests write it: "number", "string[]", "number[2]".
struct ParamType {
  KeySpec::Type type = KeySpec::Type::kAny;
  KeySpec::Type element = KeySpec::Type::kAny;  // the type of an array's elements
  std::optional<std::size_t> length;            // the number of an array's elements
};

/// The names of the types but for lists: "boolean", "integer", "number" ...
std::vector<std::string> param_type_names();
/// Throws std::invalid_argument with a sentence.
ParamType parse_param_type(const std::string& text);
std::string param_type_text(const ParamType& type);

}  // namespace capstan
