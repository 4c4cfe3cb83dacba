#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "core/text/template/expressions.hpp"
#include "core/text/template/lexer.hpp"

namespace capstan::text_template {

/// The words of a template, taken one after another. What is expected and missing is a LexicalError.
class Words {
 public:
  explicit Words(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& now() const { return tokens_[at_]; }
  const Token& next() const { return tokens_[at_ + 1 < tokens_.size() ? at_ + 1 : at_]; }
  /// The word that is now, of which the last stays.
  Token take();
  bool skip(std::string_view symbol);
  bool skip_name(std::string_view name);
  Token expect(Token::Kind kind, const char* what);
  void expect_symbol(std::string_view symbol);
  [[noreturn]] void fail(const std::string& message) const { fail_at(now(), message); }
  [[noreturn]] void fail_at(const Token& token, const std::string& message) const;

 private:
  friend class Nested;

  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

/// One more level of brackets or blocks, while it lives.
class Nested {
 public:
  explicit Nested(Words& words);
  ~Nested() { --words_.depth_; }
  Nested(const Nested&) = delete;

 private:
  Words& words_;
};

/// Reads expressions, by Jinja's precedence.
class ExpressionParser {
 public:
  explicit ExpressionParser(Words& words) : words_(words) {}

  ExpressionPtr expression();
  /// An expression, or several with commas between them, which are a list.
  ExpressionPtr tuple();
  /// Without "a if b else c": what a for loop goes through.
  ExpressionPtr tuple_without_condition();

 private:
  using Level = ExpressionPtr (ExpressionParser::*)();

  ExpressionPtr tuple_of(Level level);
  ExpressionPtr any_of();
  ExpressionPtr all_of();
  ExpressionPtr negation();
  ExpressionPtr comparison();
  ExpressionPtr sum();
  ExpressionPtr concatenation();
  ExpressionPtr product();
  ExpressionPtr power();
  ExpressionPtr unary();
  ExpressionPtr unary_without_filters();
  ExpressionPtr primary();
  ExpressionPtr binary(std::initializer_list<const char*> symbols, Level level);
  ExpressionPtr with_postfixes(ExpressionPtr of);
  ExpressionPtr with_filters(ExpressionPtr of);
  ExpressionPtr test_of(ExpressionPtr of);
  ExpressionPtr subscript_of(ExpressionPtr of);
  ExpressionPtr bracketed();
  ExpressionPtr list();
  ExpressionPtr dict();
  ArgumentList arguments();

  Words& words_;
};

}  // namespace capstan::text_template
