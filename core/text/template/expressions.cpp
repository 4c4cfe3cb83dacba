#include "core/text/template/expressions.hpp"

#include <algorithm>
#include <cmath>

#include "core/text/template/builtins.hpp"

namespace capstan::text_template {
namespace {

[[noreturn]] void fail_operation(const std::string& symbol, const Value& left, const Value& right) {
  throw TemplateError("'" + symbol + "' has no meaning for values of type " + left.type_name() + " and " +
                      right.type_name() + ".");
}

std::int64_t checked(bool overflows, std::int64_t value) {
  if (overflows) throw TemplateError("a number needs more than 64 bits.");
  return value;
}

std::int64_t negated(std::int64_t value) {
  std::int64_t result = 0;
  const bool overflows = __builtin_sub_overflow(std::int64_t{0}, value, &result);
  return checked(overflows, result);
}

Value add(const Value& left, const Value& right) {
  if (left.is_string() && right.is_string()) {
    check_size(left.string().size() + right.string().size());
    return left.string() + right.string();
  }
  if (left.is_list() && right.is_list()) {
    check_items(left.list().size() + right.list().size());
    List all = left.list();
    all.insert(all.end(), right.list().begin(), right.list().end());
    return all;
  }
  if (!left.is_number() || !right.is_number()) fail_operation("+", left, right);
  if (left.is_float() || right.is_float()) return left.number() + right.number();
  std::int64_t sum = 0;
  const bool overflows = __builtin_add_overflow(left.integer(), right.integer(), &sum);
  return checked(overflows, sum);
}

Value repeated(const std::string& text, std::int64_t count) {
  if (count > 0) check_size(text.size() * std::min<std::size_t>(static_cast<std::size_t>(count), 1U << 30));
  std::string all;
  for (std::int64_t i = 0; i < count; ++i) all += text;
  return all;
}

Value multiply(const Value& left, const Value& right) {
  if (left.is_string() && right.is_integer()) return repeated(left.string(), right.integer());
  if (left.is_integer() && right.is_string()) return repeated(right.string(), left.integer());
  if (!left.is_number() || !right.is_number()) fail_operation("*", left, right);
  if (left.is_float() || right.is_float()) return left.number() * right.number();
  std::int64_t product = 0;
  const bool overflows = __builtin_mul_overflow(left.integer(), right.integer(), &product);
  return checked(overflows, product);
}

/// Quotient and remainder as Python rounds them: down.
Value divide(const std::string& symbol, const Value& left, const Value& right) {
  if (!left.is_number() || !right.is_number()) fail_operation(symbol, left, right);
  if (right.number() == 0) throw TemplateError("division by zero.");
  if (symbol == "/") return left.number() / right.number();
  if (left.is_float() || right.is_float()) {
    const double quotient = std::floor(left.number() / right.number());
    return symbol == "//" ? quotient : left.number() - quotient * right.number();
  }
  const std::int64_t a = left.integer(), b = right.integer();
  if (b == -1) return symbol == "//" ? negated(a) : std::int64_t{0};
  const bool rounds_up = a % b != 0 && (a < 0) != (b < 0);
  return symbol == "//" ? a / b - (rounds_up ? 1 : 0) : a % b + (rounds_up ? b : 0);
}

Value power(const Value& left, const Value& right) {
  const double result = std::pow(left.number(), right.number());
  const bool whole = !left.is_float() && !right.is_float() && right.integer() >= 0;
  if (!whole) return result;
  if (std::fabs(result) > 9e15) throw TemplateError("a number needs more than 53 bits.");
  return static_cast<std::int64_t>(result);
}

bool contains(const Value& all, const Value& one) {
  if (all.is_string()) return all.string().find(one.string()) != std::string::npos;
  if (all.is_dict()) return all.find(one) != nullptr;
  const List items = all.items();
  return std::find(items.begin(), items.end(), one) != items.end();
}

bool compare(const std::string& symbol, const Value& left, const Value& right) {
  if (symbol == "==") return left == right;
  if (symbol == "!=") return !(left == right);
  if (symbol == "<") return left < right;
  if (symbol == ">") return right < left;
  if (symbol == "<=") return !(right < left);
  if (symbol == ">=") return !(left < right);
  return contains(right, left) == (symbol == "in");
}

/// Counts the work of making a value, and gives it.
Value made(Run& run, Value value) {
  run.step(value.weight());
  return value;
}

}  // namespace

Arguments evaluate_all(const ArgumentList& arguments, Run& run) {
  Arguments all;
  for (const Argument& argument : arguments) {
    Value value = argument.value->evaluate(run);
    run.step(value.weight());
    if (argument.name.empty()) {
      all.positional.push_back(std::move(value));
    } else {
      all.named.emplace_back(argument.name, std::move(value));
    }
  }
  return all;
}

Value Literal::evaluate(Run& run) const {
  const Evaluating one(run);
  return value_;
}

Value Name::evaluate(Run& run) const {
  const Evaluating one(run);
  if (const Value* found = run.scope->find(name_)) {
    if (found->is_string()) run.step(found->weight());
    return *found;
  }
  const Value* global = global_of(name_);
  return global ? *global : Value();
}

Value ListDisplay::evaluate(Run& run) const {
  const Evaluating one(run);
  List list;
  for (const auto& item : items_) list.push_back(item->evaluate(run));
  return is_tuple_ ? Value::tuple(std::move(list)) : Value(std::move(list));
}

Value DictDisplay::evaluate(Run& run) const {
  const Evaluating one(run);
  Dict dict;
  for (const auto& [key, value] : items_) {
    Value of = key->evaluate(run);
    const auto same = std::find_if(dict.begin(), dict.end(), [&](const auto& one) { return one.first == of; });
    if (same == dict.end()) {
      dict.emplace_back(std::move(of), value->evaluate(run));
    } else {
      same->second = value->evaluate(run);
    }
  }
  return dict;
}

Value Attribute::evaluate(Run& run) const {
  const Evaluating one(run);
  const Value of = of_->evaluate(run);
  if (of.is_undefined()) throw TemplateError("'" + name_ + "' is asked of a value that is not defined.");
  return attribute_of(of, name_);
}

Value Subscript::evaluate(Run& run) const {
  const Evaluating one(run);
  const Value of = of_->evaluate(run);
  if (of.is_undefined()) throw TemplateError("an element is asked of a value that is not defined.");
  if (of.is_string()) run.step(of.string().size() / 8);
  return element_of(of, key_->evaluate(run));
}

Value Slice::evaluate(Run& run) const {
  const Evaluating one(run);
  const Value of = of_->evaluate(run);
  if (!of.is_string() && !of.is_list())
    throw TemplateError(std::string("a value of type ") + of.type_name() + " has no slices.");
  run.step(of.is_string() ? of.string().size() / 8 : of.weight());
  const List items = of.items();
  const auto size = static_cast<std::int64_t>(items.size());
  const auto part = [&](const ExpressionPtr& expression) {
    return expression ? expression->evaluate(run) : Value::none();
  };
  const Value step = part(by_);
  const std::int64_t by = step.is_none() ? 1 : step.integer();
  if (by == 0) throw TemplateError("the step of a slice must not be 0.");
  // Python's rules: from the end where negative, then into the range that the step can begin and end at.
  const std::int64_t low = by > 0 ? 0 : -1, high = by > 0 ? size : size - 1;
  const auto bounded = [&](std::int64_t at) { return std::clamp(at < 0 ? at + size : at, low, high); };
  const Value begin = part(from_), end = part(to_);
  const std::int64_t from = begin.is_none() ? (by > 0 ? 0 : size - 1) : bounded(begin.integer());
  const std::int64_t to = end.is_none() ? (by > 0 ? size : -1) : bounded(end.integer());
  List some;
  for (std::int64_t at = from; by > 0 ? at < to : at > to;) {
    some.push_back(items[static_cast<std::size_t>(at)]);
    if (__builtin_add_overflow(at, by, &at)) break;
  }
  if (of.is_list()) return some;
  std::string text;
  for (const Value& one : some) text += one.string();
  return text;
}

Value Call::evaluate(Run& run) const {
  const Evaluating one(run);
  const Value function = function_->evaluate(run);
  if (function.is_undefined()) throw TemplateError("what is called is not defined.");
  const Arguments arguments = evaluate_all(arguments_, run);
  return made(run, function.function()(arguments));
}

Value Filter::evaluate(Run& run) const {
  const Evaluating one(run);
  const Value value = value_->evaluate(run);
  run.step(value.weight());
  return made(run, apply_filter(name_, value, evaluate_all(arguments_, run)));
}

Value Test::evaluate(Run& run) const {
  const Evaluating one(run);
  const Value value = value_->evaluate(run);
  return passes_test(name_, value, evaluate_all(arguments_, run)) != negated_;
}

Value Unary::evaluate(Run& run) const {
  const Evaluating one(run);
  const Value value = of_->evaluate(run);
  if (symbol_ == "not") return !value.truth();
  if (value.is_float()) return symbol_ == "-" ? -value.number() : value.number();
  const std::int64_t number = value.integer();
  return symbol_ == "-" ? negated(number) : number;
}

Value Arithmetic::evaluate(Run& run) const {
  const Evaluating one(run);
  const Value left = left_->evaluate(run), right = right_->evaluate(run);
  run.step(left.weight() + right.weight());
  if (symbol_ == "~") {
    std::string text = left.text() + right.text();
    check_size(text.size());
    return text;
  }
  if (symbol_ == "+") return add(left, right);
  if (symbol_ == "*") return multiply(left, right);
  if (symbol_ == "**") return power(left, right);
  if (symbol_ != "-") return divide(symbol_, left, right);
  if (!left.is_number() || !right.is_number()) fail_operation("-", left, right);
  if (left.is_float() || right.is_float()) return left.number() - right.number();
  std::int64_t difference = 0;
  const bool overflows = __builtin_sub_overflow(left.integer(), right.integer(), &difference);
  return checked(overflows, difference);
}

Value Comparison::evaluate(Run& run) const {
  const Evaluating one(run);
  Value left = first_->evaluate(run);
  for (const auto& [symbol, expression] : rest_) {
    Value right = expression->evaluate(run);
    run.step(left.weight() + right.weight());
    if (!compare(symbol, left, right)) return false;
    left = std::move(right);
  }
  return true;
}

Value Logic::evaluate(Run& run) const {
  const Evaluating one(run);
  Value left = left_->evaluate(run);
  return left.truth() == is_and_ ? right_->evaluate(run) : left;
}

Value Conditional::evaluate(Run& run) const {
  const Evaluating one(run);
  if (condition_->evaluate(run).truth()) return value_->evaluate(run);
  return otherwise_ ? otherwise_->evaluate(run) : Value();
}

}  // namespace capstan::text_template
