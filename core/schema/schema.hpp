#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/text/json.hpp"

namespace capstan {

/// One key of the language or one parameter of a plugin: what the validator, `validate --explain`, the JSON Schema and
/// the reference page all read.
struct KeySpec {
  enum class Type { kBoolean, kInteger, kNumber, kString, kPath, kArray, kObject, kAny };

  std::string name;  // the last component: "lr"
  Type type = Type::kAny;
  std::vector<Type> also;  // other types that are accepted as they are
  bool nullable = false;   // null has a meaning of its own; otherwise null means absent
  bool required = false;
  std::optional<Json> fallback;  // the default; none: the key stays absent
  std::optional<double> minimum, maximum;
  bool exclusive_minimum = false, exclusive_maximum = false;
  std::vector<Json> choices;          // allowed values
  bool any_case = false;              // string choices match in any letter case; the value becomes the listed spelling
  Type element = Type::kAny;          // the type of an array's elements
  std::optional<std::size_t> length;  // the exact number of an array's elements
  bool per_group = false;             // a number, or an array with one number a parameter group
  bool one_or_many = false;           // an array of one element may be written without brackets
  bool exact_type = false;            // no conversion: neither strings nor booleans are numbers, nor numbers booleans
  std::vector<std::string> aliases;   // other spellings, accepted in silence
  std::string summary;                // one sentence
};

/// "number", "integer", "string[]", "number[2]" ... as manifests and messages write it.
std::string type_text(const KeySpec& spec);

}  // namespace capstan
