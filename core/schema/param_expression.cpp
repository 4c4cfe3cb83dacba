#include "core/schema/param_expression.hpp"

#include <cmath>
#include <utility>

namespace capstan {
namespace {

/// Whole results stay integers, so that messages show them as such.
std::optional<Json> number(double value) {
  if (!std::isfinite(value)) return std::nullopt;
  constexpr double kExact = 0x1p53;
  if (std::floor(value) == value && std::abs(value) < kExact) return Json(static_cast<std::int64_t>(value));
  return Json(value);
}

bool equal(const Json& a, const Json& b) {
  return a.is_number() && b.is_number() ? a.as_number() == b.as_number() : a == b;
}

std::optional<Json> with_numbers(const std::string& operation, double a, double b) {
  if (operation == "<") return Json(a < b);
  if (operation == "<=") return Json(a <= b);
  if (operation == ">") return Json(a > b);
  if (operation == ">=") return Json(a >= b);
  if (operation == "+") return number(a + b);
  if (operation == "-") return number(a - b);
  if (operation == "*") return number(a * b);
  if (operation == "/") return number(a / b);
  return number(std::fmod(a, b));
}

std::optional<bool> truth(const std::optional<Json>& value) {
  return value && value->is_bool() ? std::optional(value->as_bool()) : std::nullopt;
}

}  // namespace

std::optional<Json> ParamExpression::Node::parameter(const Json& params) const {
  const Json* found = params.find(name);
  const bool is_there = found && !found->is_null();
  if (operation == "given") return Json(is_there);
  if (!is_there) return std::nullopt;
  if (operation == "name") return *found;
  if (!found->is_array() || index >= found->size()) return std::nullopt;
  return found->as_array()[index];
}

/// One side may settle it, whatever the other is.
std::optional<Json> ParamExpression::Node::logic(const Json& params) const {
  const bool settles = operation == "or";
  const std::optional<bool> left = truth(operands[0].evaluate(params));
  if (left == settles) return Json(settles);
  const std::optional<bool> right = truth(operands[1].evaluate(params));
  if (right == settles) return Json(settles);
  return left && right ? std::optional(Json(!settles)) : std::nullopt;
}

std::optional<Json> ParamExpression::Node::evaluate(const Json& params) const {
  if (operation == "value") return value;
  if (operands.empty()) return parameter(params);
  if (operation == "and" || operation == "or") return logic(params);
  const std::optional<Json> left = operands[0].evaluate(params);
  if (!left) return std::nullopt;
  if (operation == "not") return left->is_bool() ? std::optional(Json(!left->as_bool())) : std::nullopt;
  if (operation == "minus") return left->is_number() ? number(-left->as_number()) : std::nullopt;
  const std::optional<Json> right = operands[1].evaluate(params);
  if (!right) return std::nullopt;
  // A list with one number a parameter group is not compared with one number for all.
  if (left->is_array() != right->is_array()) return std::nullopt;
  if (operation == "==") return Json(equal(*left, *right));
  if (operation == "!=") return Json(!equal(*left, *right));
  if (!left->is_number() || !right->is_number()) return std::nullopt;
  return with_numbers(operation, left->as_number(), right->as_number());
}

std::optional<Json> ParamExpression::evaluate(const Json& params) const { return root_->evaluate(params); }

ParamExpression::Kind ParamExpression::kind() const { return root_->kind; }

}  // namespace capstan
