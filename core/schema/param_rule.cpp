#include "core/schema/param_rule.hpp"

#include <stdexcept>

#include "core/schema/value.hpp"

namespace capstan {

std::optional<std::string> ParamRule::breach(const Json& params) const {
  const std::optional<Json> kept = condition.evaluate(params);
  if (!kept || !kept->is_bool() || kept->as_bool()) return std::nullopt;
  std::string text = words.front();
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::optional<Json> value = values[i].evaluate(params);
    text += (value ? shown(*value) : "absent") + words[i + 1];
  }
  return text;
}

ParamExpression parse_condition(const std::string& check, const std::vector<KeySpec>& specs) {
  ParamExpression condition = ParamExpression::parse(check, specs);
  using Kind = ParamExpression::Kind;
  if (condition.kind() != Kind::kBoolean && condition.kind() != Kind::kAny) {
    throw std::invalid_argument("must be true or false, such as \"a <= b\".");
  }
  if (condition.names().empty()) throw std::invalid_argument("names no parameter.");
  return condition;
}

void parse_message(ParamRule& rule, const std::vector<KeySpec>& specs) {
  std::string_view rest = rule.message;
  for (auto open = rest.find('{'); open != std::string_view::npos; open = rest.find('{')) {
    const auto close = rest.find('}', open);
    if (close == std::string_view::npos) throw std::invalid_argument("a '{' is not closed by '}'.");
    rule.words.emplace_back(rest.substr(0, open));
    const std::string_view inside = rest.substr(open + 1, close - open - 1);
    try {
      rule.values.push_back(ParamExpression::parse(inside, specs));
    } catch (const std::invalid_argument& error) {
      throw std::invalid_argument("'{" + std::string(inside) + "}': " + error.what());
    }
    rest.remove_prefix(close + 1);
  }
  rule.words.emplace_back(rest);
}

}  // namespace capstan
