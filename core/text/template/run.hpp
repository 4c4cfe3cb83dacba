#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/text/template/template.hpp"

namespace capstan::text_template {

/// Variables of a part of a template, and those of the parts around it.
class Scope {
 public:
  explicit Scope(const Scope* around = nullptr) : around_(around) {}
  void set(const std::string& name, Value value);
  /// The value that the name has here or around; null where it has none.
  const Value* find(const std::string& name) const;

 private:
  const Scope* around_;
  std::vector<std::pair<std::string, Value>> variables_;
};

/// A rendering under way.
struct Run {
  explicit Run(Scope& variables) : root(variables), scope(&variables) {}

  /// Counts steps, and throws TemplateError where there were too many.
  void step(std::size_t count = 1);
  void write(std::string_view text);

  Scope& root;
  Scope* scope;  // of what is rendered now
  std::string* out = &result.text;
  Rendered result;
  int line = 0;
  std::size_t steps = 0;
  int calls = 0;  // macros within each other
  int depth = 0;  // expressions within each other
};

/// An expression under way: one step. Throws TemplateError where too many wait for each other's values.
class Evaluating {
 public:
  explicit Evaluating(Run& run);
  ~Evaluating() { --run_.depth; }
  Evaluating(const Evaluating&) = delete;
  Evaluating& operator=(const Evaluating&) = delete;

 private:
  Run& run_;
};

/// Throws TemplateError where a string is longer than allowed.
void check_size(std::size_t bytes);
void check_items(std::size_t items);

class Expression {
 public:
  virtual ~Expression() = default;
  virtual Value evaluate(Run& run) const = 0;
};
using ExpressionPtr = std::unique_ptr<const Expression>;

/// Where rendering goes on behind a statement.
enum class Flow { kNext, kBreak, kContinue };

class Statement {
 public:
  explicit Statement(int at_line) : line(at_line) {}
  virtual ~Statement() = default;
  virtual Flow render(Run& run) const = 0;

  const int line;
};

/// Statements that follow each other.
class Block {
 public:
  Flow render(Run& run) const;
  /// Renders into a string of its own.
  std::string capture(Run& run) const;

  std::vector<std::unique_ptr<const Statement>> statements;
};

}  // namespace capstan::text_template
