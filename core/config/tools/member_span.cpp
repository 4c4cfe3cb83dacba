#include "core/config/tools/member_span.hpp"

#include <algorithm>
#include <string>

namespace capstan {
namespace {

/// Walks values of a text that is known to be sound.
class Scanner {
 public:
  Scanner(std::string_view text, std::size_t at) : text_(text), at_(at) {}

  std::size_t at() const { return at_; }
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  void skip() { at_ = skip_blanks_and_comments(text_, at_); }
  void advance() { ++at_; }

  void string() {
    const char quote = text_[at_++];
    while (peek() != quote && at_ < text_.size()) at_ += peek() == '\\' ? 2 : 1;
    ++at_;
  }

  void value() {
    if (peek() == '"' || peek() == '\'') return string();
    if (peek() != '{' && peek() != '[') {
      constexpr std::string_view kEnds = " \t\r\n,]}#";
      while (at_ < text_.size() && kEnds.find(peek()) == std::string_view::npos && text_.substr(at_, 2) != "//" &&
             text_.substr(at_, 2) != "/*")
        ++at_;
      return;
    }
    // Brackets of strings and comments are passed over with them.
    std::size_t depth = 0;
    do {
      skip();
      if (peek() == '"' || peek() == '\'') {
        string();
        continue;
      }
      if (peek() == '{' || peek() == '[') ++depth;
      if (peek() == '}' || peek() == ']') --depth;
      ++at_;
    } while (depth > 0 && at_ < text_.size());
  }

 private:
  std::string_view text_;
  std::size_t at_;
};

std::optional<MemberSpan> find_in_object(std::string_view text, std::size_t object, std::string_view key) {
  Scanner scanner(text, object + 1);
  while (scanner.at() < text.size()) {
    scanner.skip();
    if (scanner.peek() == ',') {
      scanner.advance();
      continue;
    }
    if (scanner.peek() != '"' && scanner.peek() != '\'') return std::nullopt;
    MemberSpan span;
    span.key_begin = scanner.at();
    scanner.string();
    span.key_end = scanner.at();
    scanner.skip();
    scanner.advance();  // the colon
    scanner.skip();
    span.value_begin = scanner.at();
    scanner.value();
    span.value_end = scanner.at();
    if (text.substr(span.key_begin + 1, span.key_end - span.key_begin - 2) == key) return span;
  }
  return std::nullopt;
}

}  // namespace

std::size_t skip_blanks_and_comments(std::string_view text, std::size_t at) {
  while (at < text.size()) {
    if (std::string_view(" \t\r\n").find(text[at]) != std::string_view::npos) {
      ++at;
    } else if (text[at] == '#' || text.substr(at, 2) == "//") {
      at = std::min(text.find('\n', at), text.size());
    } else if (text.substr(at, 2) == "/*") {
      const auto end = text.find("*/", at + 2);
      at = end == std::string_view::npos ? text.size() : end + 2;
    } else {
      break;
    }
  }
  return at;
}

std::optional<MemberSpan> find_member(std::string_view text, std::string_view path) {
  std::size_t object = skip_blanks_and_comments(text, text.starts_with("\xEF\xBB\xBF") ? 3 : 0);
  while (true) {
    if (object >= text.size() || text[object] != '{') return std::nullopt;
    const auto dot = path.find('.');
    const auto span = find_in_object(text, object, path.substr(0, dot));
    if (!span || dot == std::string_view::npos) return span;
    object = span->value_begin;
    path.remove_prefix(dot + 1);
  }
}

}  // namespace capstan
