#pragma once

#include <optional>
#include <string>

#include "core/schema/schema.hpp"
#include "core/text/json.hpp"

namespace capstan {

/// What became of a value that a key was given: the value in the key's type, or why it cannot be.
struct Converted {
  std::optional<Json> value;
  std::string fault;   // "must be above 0, got -1.", when there is no value
  std::string remark;  // worth a warning: "the string \"5\" is read as the number 5; write it without quotes."
};

/// Converts and checks: whole numbers in any notation are integers, numeric strings and booleans are numbers with a
/// remark, 0, 1, "yes", "off" and the like are booleans. null and "auto" are the caller's business.
Converted convert(const Json& given, const KeySpec& spec);

/// A value as messages show it: 5.5, "abc", [1, 2], an object; long ones shortened.
std::string shown(const Json& value);

/// "above 0", "at least 0", "between 0 and 1", or nothing when there is no range.
std::string range_text(const KeySpec& spec);

}  // namespace capstan
