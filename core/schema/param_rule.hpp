#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/schema/param_expression.hpp"

namespace capstan {

/// What one parameter of a component demands of another, as its manifest says.
struct ParamRule {
  std::string check;    // as written: "warmup_updates <= total_updates"
  std::string message;  // as written: "{warmup_updates} is more than total_updates, {total_updates}."
  bool only_warns = false;
  ParamExpression condition;
  std::vector<std::string> words;       // the message's text around its expressions, one more than those
  std::vector<ParamExpression> values;  // in braces in the message

  /// The message with its values, when these parameters break the rule. A rule about a parameter without a value is
  /// kept.
  std::optional<std::string> breach(const Json& params) const;
};

/// Reads a condition, which must name a parameter and be true or false. Throws std::invalid_argument.
ParamExpression parse_condition(const std::string& check, const std::vector<KeySpec>& specs);
/// Reads the message of a rule into `words` and `values`. Throws std::invalid_argument.
void parse_message(ParamRule& rule, const std::vector<KeySpec>& specs);

}  // namespace capstan
