#include "core/text/template/lexer.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>

#include "core/text/template/limits.hpp"
#include "core/text/tokenizer/unicode.hpp"

namespace capstan::text_template {
namespace {

using Kind = Token::Kind;

bool is_blank(char character) { return std::isspace(static_cast<unsigned char>(character)) != 0; }
bool is_name_character(char character) {
  return std::isalnum(static_cast<unsigned char>(character)) != 0 || character == '_' ||
         static_cast<unsigned char>(character) >= 0x80;
}

/// All line ends as "\n", and without the last one, as Jinja reads sources.
std::string with_plain_lines(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\r') {
      out += '\n';
      if (i + 1 < text.size() && text[i + 1] == '\n') ++i;
    } else {
      out += text[i];
    }
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string text) : text_(std::move(text)) {}

  std::vector<Token> run() {
    while (at_ < text_.size()) {
      const std::size_t tag = next_tag();
      add_text(tag);
      if (tag == text_.size()) break;
      const char kind = text_[tag + 1];
      at_ = tag + 2;
      if (at_ < text_.size() && (text_[at_] == '-' || text_[at_] == '+')) ++at_;
      if (kind == '#') {
        comment();
      } else if (kind == '{') {
        add(Kind::kOutputBegin, "{{");
        words("}}");
        add(Kind::kOutputEnd, "}}");
      } else if (!raw()) {
        add(Kind::kStatementBegin, "{%");
        words("%}");
        add(Kind::kStatementEnd, "%}");
      }
    }
    add(Kind::kEnd, "the end of the template");
    return std::move(tokens_);
  }

 private:
  std::string_view rest() const { return std::string_view(text_).substr(at_); }
  int line_of(std::size_t at) {
    counted_line_ += static_cast<int>(std::count(text_.begin() + static_cast<std::ptrdiff_t>(counted_),
                                                 text_.begin() + static_cast<std::ptrdiff_t>(at), '\n'));
    counted_ = at;
    return counted_line_;
  }
  void add(Kind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_of(at_)}); }
  [[noreturn]] void fail(std::string message) { throw LexicalError{std::move(message), line_of(at_)}; }

  std::size_t next_tag() const {
    for (std::size_t tag = text_.find('{', at_); tag != std::string::npos; tag = text_.find('{', tag + 1)) {
      const char next = tag + 1 < text_.size() ? text_[tag + 1] : ' ';
      if (next == '{' || next == '%' || next == '#') return tag;
    }
    return text_.size();
  }

  /// The text before a tag, without what the tag strips.
  void add_text(std::size_t tag) {
    std::size_t end = tag;
    const char sign = tag + 2 < text_.size() ? text_[tag + 2] : ' ';
    if (tag < text_.size() && sign == '-') {
      while (end > at_ && is_blank(text_[end - 1])) --end;
    } else if (tag < text_.size() && text_[tag + 1] != '{' && sign != '+') {
      std::size_t begin = end;
      while (begin > at_ && text_[begin - 1] != '\n' && is_blank(text_[begin - 1])) --begin;
      if (begin == 0 || text_[begin - 1] == '\n') end = begin;
    }
    if (end > at_) add(Kind::kText, text_.substr(at_, end - at_));
  }

  /// Behind a tag that ends at at_: '-' before its end strips all blanks, otherwise a statement takes a newline along.
  void strip_behind(char sign, bool takes_newline) {
    if (sign == '-') {
      while (at_ < text_.size() && is_blank(text_[at_])) ++at_;
    } else if (takes_newline && sign != '+' && rest().starts_with('\n')) {
      ++at_;
    }
  }

  void comment() {
    const std::size_t end = text_.find("#}", at_);
    if (end == std::string::npos) fail("the comment '{#' has no end, '#}'.");
    at_ = end + 2;
    strip_behind(text_[end - 1], true);
  }

  /// Whether {% raw %} begins here; then its text is added.
  bool raw() {
    std::size_t at = at_;
    const auto skip_blanks = [&] {
      while (at < text_.size() && is_blank(text_[at])) ++at;
    };
    skip_blanks();
    if (!std::string_view(text_).substr(at).starts_with("raw")) return false;
    at += 3;
    skip_blanks();
    const bool strips = at < text_.size() && text_[at] == '-';
    if (strips) ++at;
    if (!std::string_view(text_).substr(at).starts_with("%}")) return false;
    at_ = at + 2;
    strip_behind(strips ? '-' : ' ', true);
    const std::size_t begin = at_;
    for (std::size_t tag = text_.find("{%", at_); tag != std::string::npos; tag = text_.find("{%", tag + 2)) {
      std::size_t word = tag + 2;
      if (word < text_.size() && text_[word] == '-') ++word;
      while (word < text_.size() && is_blank(text_[word])) ++word;
      const std::size_t end = text_.find("%}", word);
      if (!std::string_view(text_).substr(word).starts_with("endraw") || end == std::string::npos) continue;
      at_ = begin;
      add_text(tag);
      at_ = end + 2;
      strip_behind(text_[end - 1], true);
      return true;
    }
    fail("{% raw %} has no {% endraw %}.");
  }

  /// The words up to the end of a tag.
  void words(std::string_view end) {
    const std::size_t before = tokens_.size();
    int open = 0;
    for (;;) {
      while (at_ < text_.size() && is_blank(text_[at_])) ++at_;
      if (at_ == text_.size()) fail("a tag has no end, '" + std::string(end) + "'.");
      const char sign = text_[at_];
      const bool is_signed = (sign == '-' || sign == '+') && rest().substr(1).starts_with(end);
      if (open == 0 && (is_signed || rest().starts_with(end))) {
        at_ += end.size() + (is_signed ? 1 : 0);
        strip_behind(is_signed ? sign : ' ', end == "%}");
        return;
      }
      word(open);
      if (tokens_.size() - before > kMostWords) {
        fail("a tag has more than " + std::to_string(kMostWords) + " words.");
      }
    }
  }

  void word(int& open) {
    const char first = text_[at_];
    if (first == '"' || first == '\'') return string(first);
    if (std::isdigit(static_cast<unsigned char>(first)) != 0) return number();
    if (is_name_character(first)) {
      std::size_t end = at_;
      while (end < text_.size() && is_name_character(text_[end])) ++end;
      add(Kind::kName, text_.substr(at_, end - at_));
      at_ = end;
      return;
    }
    static constexpr std::string_view kSymbols[] = {"==", "!=", "<=", ">=", "//", "**", "<", ">", "+",
                                                    "-",  "*",  "/",  "%",  "~",  "=",  "|", ".", ",",
                                                    ":",  "(",  ")",  "[",  "]",  "{",  "}"};
    for (const std::string_view symbol : kSymbols) {
      if (!rest().starts_with(symbol)) continue;
      if (symbol == "(" || symbol == "[" || symbol == "{") ++open;
      if ((symbol == ")" || symbol == "]" || symbol == "}") && open > 0) --open;
      add(Kind::kSymbol, std::string(symbol));
      at_ += symbol.size();
      return;
    }
    fail(std::string("'") + first + "' stands where no operator has it.");
  }

  void number() {
    std::size_t end = at_;
    const auto digits = [&] {
      while (end < text_.size() && (std::isdigit(static_cast<unsigned char>(text_[end])) != 0 || text_[end] == '_')) {
        ++end;
      }
    };
    digits();
    bool is_float = false;
    if (end + 1 < text_.size() && text_[end] == '.' && std::isdigit(static_cast<unsigned char>(text_[end + 1])) != 0) {
      is_float = true;
      ++end;
      digits();
    }
    const std::size_t sign = end + 1 < text_.size() && (text_[end + 1] == '+' || text_[end + 1] == '-') ? 1 : 0;
    const bool has_exponent = end + 1 + sign < text_.size() && (text_[end] == 'e' || text_[end] == 'E') &&
                              std::isdigit(static_cast<unsigned char>(text_[end + 1 + sign])) != 0;
    if (has_exponent) {
      is_float = true;
      end += 1 + sign;
      digits();
    }
    std::string text = text_.substr(at_, end - at_);
    std::erase(text, '_');
    add(is_float ? Kind::kFloat : Kind::kInteger, std::move(text));
    at_ = end;
  }

  void string(char quote) {
    std::string value;
    std::size_t at = at_ + 1;
    for (; at < text_.size() && text_[at] != quote; ++at) {
      if (text_[at] != '\\' || at + 1 == text_.size()) {
        value += text_[at];
        continue;
      }
      at = escape(at + 1, value);
    }
    if (at >= text_.size()) fail("a string has no end.");
    add(Kind::kString, std::move(value));
    at_ = at + 1;
  }

  /// Appends what stands behind a backslash. Returns the place of its last character.
  std::size_t escape(std::size_t at, std::string& value) {
    static constexpr std::string_view kLetters = "abfnrtv\\'\"", kMeant = "\a\b\f\n\r\t\v\\'\"";
    const char letter = text_[at];
    if (const std::size_t found = kLetters.find(letter); found != std::string_view::npos) {
      value += kMeant[found];
      return at;
    }
    if (letter == '\n') return at;
    const std::size_t digits = letter == 'x' ? 2 : letter == 'u' ? 4 : letter == 'U' ? 8 : 0;
    unsigned long code = 0;
    if (digits > 0 && at + digits < text_.size()) {
      const char* begin = text_.data() + at + 1;
      const auto [end, error] = std::from_chars(begin, begin + digits, code, 16);
      const bool is_character = code <= 0x10FFFF && (code < 0xD800 || code > 0xDFFF);
      if (error == std::errc() && end == begin + digits && is_character) {
        tokenizer::append_character(value, static_cast<char32_t>(code));
        return at + digits;
      }
    }
    if (digits > 0) fail("an escape in a string is not a character.");
    value += '\\';
    value += letter;
    return at;
  }

  std::string text_;
  std::size_t at_ = 0;
  std::vector<Token> tokens_;
  std::size_t counted_ = 0;
  int counted_line_ = 1;
};

}  // namespace

std::vector<Token> tokenize_template(std::string_view text) { return Lexer(with_plain_lines(text)).run(); }

}  // namespace capstan::text_template
