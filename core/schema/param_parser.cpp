#include <algorithm>
#include <cctype>
#include <charconv>
#include <stdexcept>

#include "core/schema/param_expression.hpp"
#include "core/text/nearest.hpp"

namespace capstan {
namespace {

using Kind = ParamExpression::Kind;
using Type = KeySpec::Type;

constexpr std::size_t kLongestExpression = 1000;  // characters
constexpr int kDeepest = 50;                      // brackets and signs inside each other

Kind kind_of(Type type) {
  switch (type) {
    case Type::kBoolean:
      return Kind::kBoolean;
    case Type::kInteger:
    case Type::kNumber:
      return Kind::kNumber;
    case Type::kString:
    case Type::kPath:
      return Kind::kText;
    case Type::kArray:
      return Kind::kList;
    case Type::kObject:
    case Type::kAny:
      break;
  }
  return Kind::kAny;
}

const char* kind_text(Kind kind) {
  constexpr const char* kTexts[] = {"true or false", "a number", "a text", "a list", "any value"};
  return kTexts[static_cast<int>(kind)];
}

bool fits(Kind kind, Kind wanted) { return kind == wanted || kind == Kind::kAny || wanted == Kind::kAny; }

struct Token {
  enum class Type { kEnd, kSign, kWord, kQuotedName, kNumber, kText };
  Type type = Type::kEnd;
  std::string text;    // without quotes
  std::size_t at = 0;  // first character, counted from 1
  double number = 0;   // kNumber
  bool is(std::string_view wanted) const { return (type == Type::kSign || type == Type::kWord) && text == wanted; }
  std::string shown() const { return type == Type::kEnd ? "the end" : "'" + text + "'"; }
};

[[noreturn]] void fail(std::size_t at, const std::string& message) {
  throw std::invalid_argument("at character " + std::to_string(at) + ": " + message);
}

class Tokens {
 public:
  explicit Tokens(std::string_view text) : text_(text) { advance(); }

  const Token& peek() const { return next_; }
  Token take() {
    Token token = next_;
    advance();
    return token;
  }
  bool take_if(std::string_view wanted) {
    if (!next_.is(wanted)) return false;
    advance();
    return true;
  }
  void expect(std::string_view wanted) {
    if (!take_if(wanted)) fail(next_.at, "expected '" + std::string(wanted) + "', found " + next_.shown() + ".");
  }

 private:
  void advance() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
    next_ = {.at = at_ + 1};
    if (at_ == text_.size()) return;
    const char c = text_[at_];
    if (std::isdigit(static_cast<unsigned char>(c))) return read_number();
    if (std::isalpha(static_cast<unsigned char>(c)) || c == '_') return read_word();
    if (c == '\'' || c == '"' || c == '`') return read_quoted(c);
    read_sign();
  }

  void set(Token::Type type, std::size_t length) {
    next_.type = type;
    next_.text = std::string(text_.substr(at_, length));
    at_ += length;
  }

  void read_number() {
    const char* const begin = text_.data() + at_;
    const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), next_.number);
    if (error != std::errc()) fail(next_.at, "the number is out of range.");
    set(Token::Type::kNumber, static_cast<std::size_t>(end - begin));
  }

  void read_word() {
    std::size_t length = 1;
    while (at_ + length < text_.size() &&
           (std::isalnum(static_cast<unsigned char>(text_[at_ + length])) || text_[at_ + length] == '_'))
      ++length;
    set(Token::Type::kWord, length);
  }

  void read_quoted(char quote) {
    const std::size_t end = text_.find(quote, at_ + 1);
    if (end == std::string_view::npos) fail(next_.at, std::string("the ") + quote + " is not closed.");
    next_.type = quote == '`' ? Token::Type::kQuotedName : Token::Type::kText;
    next_.text = std::string(text_.substr(at_ + 1, end - at_ - 1));
    at_ = end + 1;
  }

  void read_sign() {
    for (const std::string_view sign : {"<=", ">=", "==", "!="}) {
      if (text_.substr(at_, 2) == sign) return set(Token::Type::kSign, 2);
    }
    if (std::string_view("<>+-*/%()[]").find(text_[at_]) == std::string_view::npos) {
      fail(next_.at, std::string("'") + text_[at_] + "' has no meaning here.");
    }
    set(Token::Type::kSign, 1);
  }

  std::string_view text_;
  std::size_t at_ = 0;
  Token next_;
};

}  // namespace

/// One function for each level of precedence, the loosest first.
class ParamParser {
 public:
  ParamParser(std::string_view text, const std::vector<KeySpec>& specs) : tokens_(text), specs_(specs) {}

  ParamExpression parse() {
    ParamExpression made;
    Node root = disjunction();
    if (const Token& rest = tokens_.peek(); rest.type != Token::Type::kEnd) {
      fail(rest.at, "expected the end, found " + rest.shown() + ".");
    }
    made.root_ = std::make_shared<const Node>(std::move(root));
    made.names_ = std::move(names_);
    return made;
  }

 private:
  using Node = ParamExpression::Node;

  Node joined(const Token& sign, Kind result, Node left, Node right) {
    Node made;
    made.operation = sign.text;
    made.kind = result;
    made.operands.push_back(std::move(left));
    made.operands.push_back(std::move(right));
    return made;
  }

  void want(const Token& sign, const Node& operand, Kind wanted) {
    if (fits(operand.kind, wanted)) return;
    fail(sign.at, "'" + sign.text + "' needs " + kind_text(wanted) + ", and has " + kind_text(operand.kind) + ".");
  }

  Node binary(std::initializer_list<std::string_view> signs, Kind kind, Node (ParamParser::*operand)()) {
    Node left = (this->*operand)();
    while (std::any_of(signs.begin(), signs.end(), [&](std::string_view sign) { return tokens_.peek().is(sign); })) {
      const Token sign = tokens_.take();
      Node right = (this->*operand)();
      want(sign, left, kind);
      want(sign, right, kind);
      left = joined(sign, kind, std::move(left), std::move(right));
    }
    return left;
  }

  Node disjunction() { return binary({"or"}, Kind::kBoolean, &ParamParser::conjunction); }
  Node conjunction() { return binary({"and"}, Kind::kBoolean, &ParamParser::negation); }

  Node unary(const Token& sign, const char* operation, Kind kind, Node operand) {
    want(sign, operand, kind);
    Node made;
    made.operation = operation;
    made.kind = kind;
    made.operands.push_back(std::move(operand));
    return made;
  }

  Node negation() {
    if (!tokens_.peek().is("not")) return comparison();
    const Token sign = tokens_.take();
    const Depth depth(*this, sign);
    return unary(sign, "not", Kind::kBoolean, negation());
  }

  Node comparison() {
    Node left = sum();
    for (const char* sign : {"<", "<=", ">", ">=", "==", "!="}) {
      if (!tokens_.peek().is(sign)) continue;
      const Token found = tokens_.take();
      Node right = sum();
      if (found.is("==") || found.is("!=")) {
        want(found, right, left.kind);
      } else {
        want(found, left, Kind::kNumber);
        want(found, right, Kind::kNumber);
      }
      return joined(found, Kind::kBoolean, std::move(left), std::move(right));
    }
    return left;
  }

  Node sum() { return binary({"+", "-"}, Kind::kNumber, &ParamParser::product); }
  Node product() { return binary({"*", "/", "%"}, Kind::kNumber, &ParamParser::signed_value); }

  Node signed_value() {
    if (!tokens_.peek().is("-")) return primary();
    const Token sign = tokens_.take();
    const Depth depth(*this, sign);
    return unary(sign, "minus", Kind::kNumber, signed_value());
  }

  Node primary() {
    const Token token = tokens_.take();
    const Depth depth(*this, token);
    if (token.is("(")) {
      Node inner = disjunction();
      tokens_.expect(")");
      return inner;
    }
    if (token.type == Token::Type::kNumber) return literal(Json(token.number), Kind::kNumber);
    if (token.type == Token::Type::kText) return literal(Json(token.text), Kind::kText);
    if (token.is("true") || token.is("false")) return literal(Json(token.is("true")), Kind::kBoolean);
    if (token.is("given")) return given();
    if (token.type == Token::Type::kWord || token.type == Token::Type::kQuotedName) return parameter(token);
    fail(token.at, "expected a parameter or a value, found " + token.shown() + ".");
  }

  static Node literal(Json value, Kind kind) {
    Node made;
    made.operation = "value";
    made.kind = kind;
    made.value = std::move(value);
    return made;
  }

  Node given() {
    tokens_.expect("(");
    const Token token = tokens_.take();
    Node made;
    made.operation = "given";
    made.kind = Kind::kBoolean;
    made.name = spec(token).name;
    tokens_.expect(")");
    return made;
  }

  Node parameter(const Token& token) {
    const KeySpec& found = spec(token);
    Node made;
    made.operation = "name";
    made.name = found.name;
    made.kind = found.also.empty() ? kind_of(found.type) : Kind::kAny;
    if (!tokens_.take_if("[")) return made;
    const Token index = tokens_.take();
    if (index.type != Token::Type::kNumber || index.text.find_first_not_of("0123456789") != std::string::npos ||
        index.text.size() > 9) {
      fail(index.at, "expected the index of an element, 0 for the first, found " + index.shown() + ".");
    }
    if (!fits(made.kind, Kind::kList) && !found.per_group) fail(token.at, "'" + found.name + "' is not a list.");
    made.operation = "[]";
    made.index = static_cast<std::size_t>(index.number);
    made.kind = found.type == Type::kArray && found.also.empty() ? kind_of(found.element) : made.kind;
    if (found.length && made.index >= *found.length) {
      fail(index.at, "'" + found.name + "' has " + std::to_string(*found.length) + " elements, the first is 0.");
    }
    tokens_.expect("]");
    return made;
  }

  const KeySpec& spec(const Token& token) {
    if (token.type != Token::Type::kWord && token.type != Token::Type::kQuotedName) {
      fail(token.at, "expected the name of a parameter, found " + token.shown() + ".");
    }
    std::vector<std::string> known;
    for (const KeySpec& one : specs_) {
      if (one.name == token.text) {
        names_.push_back(one.name);
        return one;
      }
      known.push_back(one.name);
    }
    fail(token.at, token.shown() + " is not a parameter of this component." + suggestion(token.text, known));
  }

  /// Keeps a hostile manifest from exhausting the stack.
  class Depth {
   public:
    Depth(ParamParser& parser, const Token& token) : depth_(parser.depth_) {
      if (++depth_ > kDeepest) fail(token.at, "nested deeper than " + std::to_string(kDeepest) + " levels.");
    }
    ~Depth() { --depth_; }
    Depth(const Depth&) = delete;
    Depth& operator=(const Depth&) = delete;

   private:
    int& depth_;
  };

  Tokens tokens_;
  const std::vector<KeySpec>& specs_;
  std::vector<std::string> names_;
  int depth_ = 0;
};

ParamExpression ParamExpression::parse(std::string_view text, const std::vector<KeySpec>& specs) {
  if (text.size() > kLongestExpression) {
    throw std::invalid_argument("has " + std::to_string(text.size()) + " characters; at most 1000 are read.");
  }
  return ParamParser(text, specs).parse();
}

}  // namespace capstan
