#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/text/template/run.hpp"

/// The expressions of a template, as the parser makes them.
namespace capstan::text_template {

/// Arguments that are not evaluated yet; a named one has a name.
struct Argument {
  std::string name;
  ExpressionPtr value;
};
using ArgumentList = std::vector<Argument>;
Arguments evaluate_all(const ArgumentList& arguments, Run& run);

class Literal final : public Expression {
 public:
  explicit Literal(Value value) : value_(std::move(value)) {}
  Value evaluate(Run& run) const override;

 private:
  Value value_;
};

class Name final : public Expression {
 public:
  explicit Name(std::string name) : name_(std::move(name)) {}
  Value evaluate(Run& run) const override;

 private:
  std::string name_;
};

class ListDisplay final : public Expression {
 public:
  ListDisplay(std::vector<ExpressionPtr> items, bool is_tuple) : items_(std::move(items)), is_tuple_(is_tuple) {}
  Value evaluate(Run& run) const override;

 private:
  std::vector<ExpressionPtr> items_;
  bool is_tuple_;
};

class DictDisplay final : public Expression {
 public:
  using Items = std::vector<std::pair<ExpressionPtr, ExpressionPtr>>;
  explicit DictDisplay(Items items) : items_(std::move(items)) {}
  Value evaluate(Run& run) const override;

 private:
  Items items_;
};

class Attribute final : public Expression {
 public:
  Attribute(ExpressionPtr of, std::string name) : of_(std::move(of)), name_(std::move(name)) {}
  Value evaluate(Run& run) const override;

 private:
  ExpressionPtr of_;
  std::string name_;
};

class Subscript final : public Expression {
 public:
  Subscript(ExpressionPtr of, ExpressionPtr key) : of_(std::move(of)), key_(std::move(key)) {}
  Value evaluate(Run& run) const override;

 private:
  ExpressionPtr of_, key_;
};

/// of[from:to:by]; parts that are missing are null.
class Slice final : public Expression {
 public:
  Slice(ExpressionPtr of, ExpressionPtr from, ExpressionPtr to, ExpressionPtr by)
      : of_(std::move(of)), from_(std::move(from)), to_(std::move(to)), by_(std::move(by)) {}
  Value evaluate(Run& run) const override;

 private:
  ExpressionPtr of_, from_, to_, by_;
};

class Call final : public Expression {
 public:
  Call(ExpressionPtr function, ArgumentList arguments)
      : function_(std::move(function)), arguments_(std::move(arguments)) {}
  Value evaluate(Run& run) const override;

 private:
  ExpressionPtr function_;
  ArgumentList arguments_;
};

class Filter final : public Expression {
 public:
  Filter(ExpressionPtr value, std::string name, ArgumentList arguments)
      : value_(std::move(value)), name_(std::move(name)), arguments_(std::move(arguments)) {}
  Value evaluate(Run& run) const override;

 private:
  ExpressionPtr value_;
  std::string name_;
  ArgumentList arguments_;
};

class Test final : public Expression {
 public:
  Test(ExpressionPtr value, std::string name, ArgumentList arguments, bool negated)
      : value_(std::move(value)), name_(std::move(name)), arguments_(std::move(arguments)), negated_(negated) {}
  Value evaluate(Run& run) const override;

 private:
  ExpressionPtr value_;
  std::string name_;
  ArgumentList arguments_;
  bool negated_;
};

/// "not x", "-x", "+x".
class Unary final : public Expression {
 public:
  Unary(std::string symbol, ExpressionPtr of) : symbol_(std::move(symbol)), of_(std::move(of)) {}
  Value evaluate(Run& run) const override;

 private:
  std::string symbol_;
  ExpressionPtr of_;
};

/// + - * / // % ** and ~.
class Arithmetic final : public Expression {
 public:
  Arithmetic(std::string symbol, ExpressionPtr left, ExpressionPtr right)
      : symbol_(std::move(symbol)), left_(std::move(left)), right_(std::move(right)) {}
  Value evaluate(Run& run) const override;

 private:
  std::string symbol_;
  ExpressionPtr left_, right_;
};

/// "a < b <= c": each value beside the next.
class Comparison final : public Expression {
 public:
  using Rest = std::vector<std::pair<std::string, ExpressionPtr>>;
  Comparison(ExpressionPtr first, Rest rest) : first_(std::move(first)), rest_(std::move(rest)) {}
  Value evaluate(Run& run) const override;

 private:
  ExpressionPtr first_;
  Rest rest_;
};

/// "a and b", "a or b": the value that decides.
class Logic final : public Expression {
 public:
  Logic(bool is_and, ExpressionPtr left, ExpressionPtr right)
      : is_and_(is_and), left_(std::move(left)), right_(std::move(right)) {}
  Value evaluate(Run& run) const override;

 private:
  bool is_and_;
  ExpressionPtr left_, right_;
};

/// "a if condition else b"; without an else undefined.
class Conditional final : public Expression {
 public:
  Conditional(ExpressionPtr value, ExpressionPtr condition, ExpressionPtr otherwise)
      : value_(std::move(value)), condition_(std::move(condition)), otherwise_(std::move(otherwise)) {}
  Value evaluate(Run& run) const override;

 private:
  ExpressionPtr value_, condition_, otherwise_;
};

}  // namespace capstan::text_template
