#pragma once

#include <span>
#include <string>

#include "core/config/resolve/effective.hpp"
#include "core/text/problem.hpp"

namespace capstan {

/// What a key must be for a row of the table to speak.
struct Condition {
  enum class Is { kTrue, kFalse, kEqual, kAbove, kBelow, kGiven };

  const char* key;
  Is is = Is::kTrue;
  double number = 0;      // what kEqual, kAbove and kBelow compare with
  const char* text = "";  // what kEqual compares a string with

  bool holds(const Effective& values) const;
  /// "`amp.enabled`", "`zero_optimization.stage` above 0"
  std::string sentence() const;
};

/// Two settings that do not go together: an error at the key of `setting` while `with` holds too. "{}" in the message
/// is the value of `with`.
struct Incompatible {
  Condition setting, with;
  const char* message;
};

/// The compatibility table: what the validator checks and the reference page prints. Rules of three and more keys, and
/// those that compute, stand in rules.cpp.
std::span<const Incompatible> compatibility_table();

void check_compatibility(const Effective& values, Problems& problems);

}  // namespace capstan
