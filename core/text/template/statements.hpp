#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/text/template/expressions.hpp"

/// The statements of a template, as the parser makes them.
namespace capstan::text_template {

class TextStatement final : public Statement {
 public:
  TextStatement(int line, std::string text) : Statement(line), text_(std::move(text)) {}
  Flow render(Run& run) const override;

 private:
  std::string text_;
};

class Output final : public Statement {
 public:
  Output(int line, ExpressionPtr value) : Statement(line), value_(std::move(value)) {}
  Flow render(Run& run) const override;

 private:
  ExpressionPtr value_;
};

/// The left side of an assignment: "a", "a, b" or "space.a".
struct Target {
  std::vector<std::string> names;
  std::string member;  // of names[0], a namespace

  void assign(Run& run, const Value& value) const;
};

class Set final : public Statement {
 public:
  Set(int line, Target target, ExpressionPtr value, std::unique_ptr<const Block> body)
      : Statement(line), target_(std::move(target)), value_(std::move(value)), body_(std::move(body)) {}
  Flow render(Run& run) const override;

 private:
  Target target_;
  ExpressionPtr value_;  // null: the text of body_
  std::unique_ptr<const Block> body_;
};

class If final : public Statement {
 public:
  using Branch = std::pair<ExpressionPtr, std::unique_ptr<const Block>>;  // an else has no condition
  If(int line, std::vector<Branch> branches) : Statement(line), branches_(std::move(branches)) {}
  Flow render(Run& run) const override;

 private:
  std::vector<Branch> branches_;
};

class For final : public Statement {
 public:
  For(int line, Target target, ExpressionPtr over, ExpressionPtr condition, std::unique_ptr<const Block> body,
      std::unique_ptr<const Block> otherwise)
      : Statement(line),
        target_(std::move(target)),
        over_(std::move(over)),
        condition_(std::move(condition)),
        body_(std::move(body)),
        otherwise_(std::move(otherwise)) {}
  Flow render(Run& run) const override;

 private:
  List kept_items(Run& run, Scope& scope) const;

  Target target_;
  ExpressionPtr over_, condition_;
  std::unique_ptr<const Block> body_, otherwise_;
};

class Macro final : public Statement {
 public:
  struct Parameter {
    std::string name;
    ExpressionPtr otherwise;  // null: undefined where it is not given
  };
  Macro(int line, std::string name, std::vector<Parameter> parameters, std::unique_ptr<const Block> body)
      : Statement(line), name_(std::move(name)), parameters_(std::move(parameters)), body_(std::move(body)) {}
  Flow render(Run& run) const override;

 private:
  Value call(Run& run, const Arguments& arguments) const;

  std::string name_;
  std::vector<Parameter> parameters_;
  std::unique_ptr<const Block> body_;
};

/// {% generation %}: what a model is to learn.
class Generation final : public Statement {
 public:
  Generation(int line, std::unique_ptr<const Block> body) : Statement(line), body_(std::move(body)) {}
  Flow render(Run& run) const override;

 private:
  std::unique_ptr<const Block> body_;
};

/// {% break %} and {% continue %}.
class Jump final : public Statement {
 public:
  Jump(int line, Flow flow) : Statement(line), flow_(flow) {}
  Flow render(Run& /*run*/) const override { return flow_; }

 private:
  Flow flow_;
};

}  // namespace capstan::text_template
