#include "core/text/template/expression_parser.hpp"

#include <algorithm>
#include <charconv>
#include <map>

#include "core/text/template/builtins.hpp"
#include "core/text/template/limits.hpp"

namespace capstan::text_template {
namespace {

using Kind = Token::Kind;

}  // namespace

Token Words::take() {
  Token token = tokens_[at_];
  if (at_ + 1 < tokens_.size()) ++at_;
  return token;
}

bool Words::skip(std::string_view symbol) {
  const bool is = now().is(symbol);
  if (is) take();
  return is;
}

bool Words::skip_name(std::string_view name) {
  const bool is = now().is_name(name);
  if (is) take();
  return is;
}

Token Words::expect(Kind kind, const char* what) {
  if (now().kind != kind) fail(std::string("expected ") + what + ", found '" + now().text + "'.");
  return take();
}

void Words::expect_symbol(std::string_view symbol) {
  if (!skip(symbol)) fail("expected '" + std::string(symbol) + "', found '" + now().text + "'.");
}

void Words::fail_at(const Token& token, const std::string& message) const { throw LexicalError{message, token.line}; }

Nested::Nested(Words& words) : words_(words) {
  if (++words_.depth_ <= kDeepestSource) return;
  --words_.depth_;
  words_.fail("brackets and blocks lie more than " + std::to_string(kDeepestSource) + " deep in each other.");
}

ExpressionPtr ExpressionParser::expression() {
  const Nested nested(words_);
  ExpressionPtr value = any_of();
  while (words_.skip_name("if")) {
    ExpressionPtr condition = any_of();
    ExpressionPtr otherwise = words_.skip_name("else") ? expression() : nullptr;
    value = std::make_unique<Conditional>(std::move(value), std::move(condition), std::move(otherwise));
  }
  return value;
}

ExpressionPtr ExpressionParser::tuple() { return tuple_of(&ExpressionParser::expression); }
ExpressionPtr ExpressionParser::tuple_without_condition() { return tuple_of(&ExpressionParser::any_of); }

ExpressionPtr ExpressionParser::tuple_of(Level level) {
  ExpressionPtr first = (this->*level)();
  if (!words_.now().is(",")) return first;
  std::vector<ExpressionPtr> items;
  items.push_back(std::move(first));
  while (words_.skip(",")) {
    const Kind kind = words_.now().kind;
    if (kind == Kind::kOutputEnd || kind == Kind::kStatementEnd || words_.now().is(")")) break;
    items.push_back((this->*level)());
  }
  return std::make_unique<ListDisplay>(std::move(items), true);
}

ExpressionPtr ExpressionParser::any_of() {
  ExpressionPtr left = all_of();
  while (words_.skip_name("or")) left = std::make_unique<Logic>(false, std::move(left), all_of());
  return left;
}

ExpressionPtr ExpressionParser::all_of() {
  ExpressionPtr left = negation();
  while (words_.skip_name("and")) left = std::make_unique<Logic>(true, std::move(left), negation());
  return left;
}

ExpressionPtr ExpressionParser::negation() {
  if (!words_.skip_name("not")) return comparison();
  const Nested nested(words_);
  return std::make_unique<Unary>("not", negation());
}

ExpressionPtr ExpressionParser::comparison() {
  ExpressionPtr first = sum();
  Comparison::Rest rest;
  for (;;) {
    const Token& token = words_.now();
    const bool compares = token.is("==") || token.is("!=") || token.is("<") || token.is(">") || token.is("<=") ||
                          token.is(">=") || token.is_name("in");
    if (compares) {
      std::string symbol = words_.take().text;
      rest.emplace_back(std::move(symbol), sum());
    } else if (token.is_name("not") && words_.next().is_name("in")) {
      words_.take();
      words_.take();
      rest.emplace_back("not in", sum());
    } else {
      break;
    }
  }
  return rest.empty() ? std::move(first) : std::make_unique<Comparison>(std::move(first), std::move(rest));
}

ExpressionPtr ExpressionParser::binary(std::initializer_list<const char*> symbols, Level level) {
  ExpressionPtr left = (this->*level)();
  for (;;) {
    const auto found =
        std::find_if(symbols.begin(), symbols.end(), [&](const char* symbol) { return words_.now().is(symbol); });
    if (found == symbols.end()) return left;
    words_.take();
    left = std::make_unique<Arithmetic>(*found, std::move(left), (this->*level)());
  }
}

ExpressionPtr ExpressionParser::sum() { return binary({"+", "-"}, &ExpressionParser::concatenation); }
ExpressionPtr ExpressionParser::concatenation() { return binary({"~"}, &ExpressionParser::product); }
ExpressionPtr ExpressionParser::product() { return binary({"*", "/", "//", "%"}, &ExpressionParser::power); }
ExpressionPtr ExpressionParser::power() { return binary({"**"}, &ExpressionParser::unary); }

ExpressionPtr ExpressionParser::unary() { return with_filters(unary_without_filters()); }

ExpressionPtr ExpressionParser::unary_without_filters() {
  const Nested nested(words_);
  for (const char* sign : {"-", "+"}) {
    if (words_.skip(sign)) return with_postfixes(std::make_unique<Unary>(sign, unary_without_filters()));
  }
  return with_postfixes(primary());
}

ExpressionPtr ExpressionParser::primary() {
  const Token token = words_.take();
  if (token.kind == Kind::kString) {
    std::string text = token.text;
    while (words_.now().kind == Kind::kString) text += words_.take().text;
    return std::make_unique<Literal>(Value(std::move(text)));
  }
  if (token.kind == Kind::kInteger || token.kind == Kind::kFloat) {
    const char* end = token.text.data() + token.text.size();
    std::int64_t whole = 0;
    double number = 0;
    const bool fits = token.kind == Kind::kInteger ? std::from_chars(token.text.data(), end, whole).ec == std::errc()
                                                   : std::from_chars(token.text.data(), end, number).ec == std::errc();
    if (!fits) words_.fail_at(token, "the number " + token.text + " is too large.");
    return std::make_unique<Literal>(token.kind == Kind::kInteger ? Value(whole) : Value(number));
  }
  if (token.kind == Kind::kName) {
    if (token.text == "true" || token.text == "True") return std::make_unique<Literal>(Value(true));
    if (token.text == "false" || token.text == "False") return std::make_unique<Literal>(Value(false));
    if (token.text == "none" || token.text == "None") return std::make_unique<Literal>(Value::none());
    return std::make_unique<Name>(token.text);
  }
  if (token.is("(")) return bracketed();
  if (token.is("[")) return list();
  if (token.is("{")) return dict();
  words_.fail_at(token, "expected a value, found '" + token.text + "'.");
}

ExpressionPtr ExpressionParser::bracketed() {
  if (words_.skip(")")) return std::make_unique<ListDisplay>(std::vector<ExpressionPtr>(), true);
  ExpressionPtr inner = tuple();
  words_.expect_symbol(")");
  return inner;
}

ExpressionPtr ExpressionParser::list() {
  std::vector<ExpressionPtr> items;
  while (!words_.skip("]")) {
    if (!items.empty()) {
      words_.expect_symbol(",");
      if (words_.skip("]")) break;
    }
    items.push_back(expression());
  }
  return std::make_unique<ListDisplay>(std::move(items), false);
}

ExpressionPtr ExpressionParser::dict() {
  DictDisplay::Items items;
  while (!words_.skip("}")) {
    if (!items.empty()) {
      words_.expect_symbol(",");
      if (words_.skip("}")) break;
    }
    ExpressionPtr key = expression();
    words_.expect_symbol(":");
    items.emplace_back(std::move(key), expression());
  }
  return std::make_unique<DictDisplay>(std::move(items));
}

ExpressionPtr ExpressionParser::with_postfixes(ExpressionPtr of) {
  for (;;) {
    if (words_.skip(".")) {
      const Token name = words_.take();
      if (name.kind == Kind::kName) {
        of = std::make_unique<Attribute>(std::move(of), name.text);
      } else if (name.kind == Kind::kInteger && name.text.size() < 10) {
        const auto index = static_cast<std::int64_t>(std::stol(name.text));
        of = std::make_unique<Subscript>(std::move(of), std::make_unique<Literal>(Value(index)));
      } else {
        words_.fail_at(name, "expected a name behind '.', found '" + name.text + "'.");
      }
    } else if (words_.skip("[")) {
      of = subscript_of(std::move(of));
    } else if (words_.skip("(")) {
      of = std::make_unique<Call>(std::move(of), arguments());
    } else {
      return of;
    }
  }
}

ExpressionPtr ExpressionParser::subscript_of(ExpressionPtr of) {
  ExpressionPtr parts[3];
  bool is_slice = false;
  for (int part = 0; part < 3; ++part) {
    if (!words_.now().is(":") && !words_.now().is("]")) parts[part] = expression();
    if (part == 2 || !words_.skip(":")) break;
    is_slice = true;
  }
  words_.expect_symbol("]");
  if (is_slice) {
    return std::make_unique<Slice>(std::move(of), std::move(parts[0]), std::move(parts[1]), std::move(parts[2]));
  }
  if (!parts[0]) words_.fail("'[]' has no key.");
  return std::make_unique<Subscript>(std::move(of), std::move(parts[0]));
}

ExpressionPtr ExpressionParser::with_filters(ExpressionPtr of) {
  for (;;) {
    if (words_.skip("|")) {
      const Token name = words_.expect(Kind::kName, "the name of a filter");
      if (!knows_filter(name.text)) words_.fail_at(name, "the filter '" + name.text + "' is not supported.");
      of = std::make_unique<Filter>(std::move(of), name.text, words_.skip("(") ? arguments() : ArgumentList());
    } else if (words_.skip_name("is")) {
      of = test_of(std::move(of));
    } else if (words_.skip("(")) {
      of = std::make_unique<Call>(std::move(of), arguments());
    } else {
      return of;
    }
  }
}

ExpressionPtr ExpressionParser::test_of(ExpressionPtr of) {
  const bool negated = words_.skip_name("not");
  const Token name = words_.expect(Kind::kName, "the name of a test");
  if (!knows_test(name.text)) words_.fail_at(name, "the test '" + name.text + "' is not supported.");
  ArgumentList given;
  const Token& now = words_.now();
  const bool ends = now.is_name("else") || now.is_name("or") || now.is_name("and");
  const bool has_argument = now.kind == Kind::kString || now.kind == Kind::kInteger || now.kind == Kind::kFloat ||
                            now.is("[") || now.is("{") || (now.kind == Kind::kName && !ends);
  if (words_.skip("(")) {
    given = arguments();
  } else if (has_argument) {
    given.push_back({"", with_postfixes(primary())});
  }
  return std::make_unique<Test>(std::move(of), name.text, std::move(given), negated);
}

ArgumentList ExpressionParser::arguments() {
  ArgumentList all;
  while (!words_.skip(")")) {
    if (!all.empty()) {
      words_.expect_symbol(",");
      if (words_.skip(")")) break;
    }
    std::string name;
    if (words_.now().kind == Kind::kName && words_.next().is("=")) {
      name = words_.take().text;
      words_.take();
    } else if (!all.empty() && !all.back().name.empty()) {
      words_.fail("an argument without a name stands behind one with a name.");
    }
    all.push_back({std::move(name), expression()});
  }
  return all;
}

}  // namespace capstan::text_template
