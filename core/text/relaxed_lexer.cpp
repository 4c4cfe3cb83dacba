#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "core/text/places.hpp"
#include "core/text/relaxed.hpp"
#include "core/text/utf8.hpp"

namespace capstan {
namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

/// What strict JSON lacks and we accept, with the sentence that says so.
enum class Leniency { kComment, kTrailingComma, kMissingComma, kSingleQuotes, kPythonLiteral };
constexpr std::array<const char*, 5> kLeniencyTexts = {
    "comments are read here, but are not JSON",
    "a comma before a closing bracket is read here, but is not JSON",
    "members separated by a line break alone are read here, but JSON wants a comma between them",
    "single-quoted strings are read here, but JSON wants double quotes",
    "None, True and False are read here, but JSON spells them null, true and false",
};

/// Where the reading ended: a syntax error.
struct SyntaxError {
  std::size_t offset;
  std::string message;
};

struct Placeholder {
  std::size_t offset;
  std::string text;
};

struct Frame {
  bool object;
  std::size_t open;
  std::size_t indent;  // how far the line that opens it is indented
  std::size_t count = 0;
};

/// Where the layout of the text says that a bracket is missing.
struct Suspicion {
  std::size_t offset;  // the first key or bracket that stands further left than it should
  std::size_t open;    // the bracket that was to be closed before it
};

constexpr std::string_view kDots = "...";

/// "0|1|2|3", as documentation writes the values that a key may have.
bool is_choice(std::string_view word) { return word.find('|') != std::string_view::npos; }

bool is_template_syntax(std::string_view text) {
  return text.starts_with("{{") || text.starts_with("{%") || text.starts_with("{#") || text.starts_with("${");
}

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

std::string shortened(std::string_view text) {
  constexpr std::size_t kMost = 40;
  return text.size() <= kMost ? std::string(text) : std::string(text.substr(0, kMost)) + "...";
}

/// What is wrong with a number that JSON does not know, or nothing when it is right.
std::string number_fault(std::string_view token) {
  std::string_view digits = token.starts_with('-') ? token.substr(1) : token;
  if (token.starts_with('+')) return "a number has no plus sign in JSON";
  if (digits.starts_with("0x") || digits.starts_with("0X")) return "JSON has no hexadecimal numbers";
  if (digits.starts_with('.')) return "a number needs a digit before the point: 0" + shortened(digits);
  if (digits.size() > 1 && digits[0] == '0' && is_digit(digits[1])) return "a number must not begin with 0";

  std::size_t at = 0;
  const auto skip_digits = [&] {
    const std::size_t begin = at;
    while (at < digits.size() && is_digit(digits[at])) ++at;
    return at > begin;
  };
  bool right = skip_digits();
  if (right && at < digits.size() && digits[at] == '.') {
    ++at;
    if (!skip_digits())
      return "a number needs a digit after the point: " + shortened(token.substr(0, token.size())) + "0";
  }
  if (right && at < digits.size() && (digits[at] == 'e' || digits[at] == 'E')) {
    ++at;
    if (at < digits.size() && (digits[at] == '+' || digits[at] == '-')) ++at;
    right = skip_digits();
  }
  if (!right || at != digits.size()) return "'" + shortened(token) + "' is not a number";
  if (std::isinf(std::strtod(std::string(token).c_str(), nullptr))) {
    return "the number " + shortened(token) + " (" + std::to_string(token.size()) + " characters) is too large";
  }
  return "";
}

/// Reads relaxed JSON from the front to the end and writes strict JSON.
class Lexer {
 public:
  explicit Lexer(std::string_view text) : text_(text) {}

  /// Throws SyntaxError.
  void run() {
    if (text_.starts_with(kByteOrderMark)) at_ = kByteOrderMark.size();
    skip_blank();
    if (at_end()) throw SyntaxError{0, "the file is empty; the smallest configuration is {}"};
    if (peek() != '{') throw SyntaxError{at_, "a configuration is one object: it begins with '{'" + other_language()};
    value();
    while (!frames_.empty()) frames_.back().object ? member() : element();
    const std::size_t end = at_;
    skip_blank();
    if (!at_end()) throw SyntaxError{at_, text_after_end(end)};
  }

  StrictJson take() { return std::move(out_); }
  /// In the order of the text. A string such as "[cpu|nvme]", which may be a pattern, counts where there are others.
  std::vector<Placeholder> placeholders() const {
    std::vector<Placeholder> all = placeholders_;
    if (!all.empty()) all.insert(all.end(), choices_.begin(), choices_.end());
    std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.offset < b.offset; });
    return all;
  }
  const std::map<Leniency, std::size_t>& leniencies() const { return leniencies_; }
  std::string_view text() const { return text_; }

 private:
  /// What a text that does not begin with '{' may be instead.
  std::string other_language() const {
    const auto is_name = [](char c) {
      return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-';
    };
    if (peek() == '"') return ". Put braces around the whole";
    std::size_t i = at_;
    while (i < text_.size() && is_name(text_[i])) ++i;
    if (i == at_) return "";
    while (i < text_.size() && text_[i] == ' ') ++i;
    if (i < text_.size() && text_[i] == ':') return ". This looks like YAML; write JSON, or TOML";
    if (i < text_.size() && text_[i] == '=')
      return ". This looks like TOML, which is read from files named .toml, or like a program";
    return "";
  }

  bool at_end() const { return at_ >= text_.size(); }
  char peek() const { return text_[at_]; }
  bool next_is(std::string_view what) const { return text_.substr(at_, what.size()) == what; }

  void lenient(Leniency what, std::size_t offset) { leniencies_.try_emplace(what, offset); }
  void origin(std::size_t offset) {
    if (out_.origins.size() >= kMostValues) {
      throw SyntaxError{offset,
                        "more than " + std::to_string(kMostValues) + " values; a configuration has a few hundred"};
    }
    out_.origins.push_back(offset);
  }
  void put(std::string_view piece) { out_.text += piece; }
  void fix(std::size_t offset, std::size_t size, std::string text) {
    out_.fixes.push_back({offset, size, std::move(text)});
  }

  std::string text_after_end(std::size_t end) const {
    const TextPlaces places(text_.substr(0, at_ + 1));
    return "the document ends at line " + std::to_string(places.line(end - 1)) +
           "; what follows belongs to no object. Is there a closing bracket too early, or text of another file?";
  }

  /// Skips blanks, comments and template tags. True when a line break was among them.
  bool skip_blank() {
    bool line_break = false;
    while (!at_end()) {
      const std::size_t begin = at_;
      if (is_blank(peek())) {
        ++at_;
      } else if (peek() == '#' || next_is("//")) {
        lenient(Leniency::kComment, at_);
        while (!at_end() && peek() != '\n') ++at_;
      } else if (next_is("/*")) {
        lenient(Leniency::kComment, at_);
        skip_past("*/", "this comment is never closed with */");
      } else if (next_is("{%") || next_is("{#")) {
        skip_past(next_is("{%") ? "%}" : "#}", "this template tag is never closed");
        placeholders_.push_back({begin, shortened(text_.substr(begin, at_ - begin))});
      } else {
        break;
      }
      line_break |= text_.substr(begin, at_ - begin).find('\n') != std::string_view::npos;
    }
    return line_break;
  }

  void skip_past(std::string_view end, const char* complaint) {
    const auto found = text_.find(end, at_ + 2);
    if (found == std::string_view::npos) throw SyntaxError{at_, complaint};
    at_ = found + end.size();
  }

  void require_more(const Frame& frame) const {
    if (!at_end()) return;
    if (suspicion_) throw SyntaxError{suspicion_->offset, suspicion_text()};
    throw SyntaxError{
        frame.open, std::string("this '") + (frame.object ? '{' : '[') + "' is never closed: the file ends inside it"};
  }

  std::string suspicion_text() const {
    const TextPlaces places(text_.substr(0, suspicion_->offset + 1));
    const char open = text_[suspicion_->open];
    return std::string("a '") + (open == '{' ? '}' : ']') + "' is probably missing before this line: the '" + open +
           "' of line " + std::to_string(places.line(suspicion_->open)) +
           " is still open here, and the file ends before all is closed";
  }

  /// The blanks before the first sign of a line, when that sign stands at the offset.
  std::optional<std::size_t> indent_of_line_start(std::size_t offset) const {
    const std::size_t begin = line_start(offset);
    return text_.find_first_not_of(" \t", begin) == offset ? std::optional(offset - begin) : std::nullopt;
  }
  std::size_t line_start(std::size_t offset) const {
    const auto line_break = offset == 0 ? std::string_view::npos : text_.rfind('\n', offset - 1);
    return line_break == std::string_view::npos ? 0 : line_break + 1;
  }
  std::size_t indent_of_line(std::size_t offset) const {
    const std::size_t begin = line_start(offset);
    return text_.find_first_not_of(" \t", begin) - begin;
  }

  /// Remembers the first key that stands no further right than the line that opened its object, and the first closing
  /// bracket further left than that line: a file that ends too early probably lacks a bracket there.
  void watch_layout(bool closes) {
    const Frame& frame = frames_.back();
    const auto indent = indent_of_line_start(at_);
    if (suspicion_ || !indent || line_start(frame.open) == line_start(at_)) return;
    const bool outer = frames_.size() == 1;  // everything may stand at the margin, and nothing is left of it
    if (!outer && (closes ? *indent < frame.indent : *indent <= frame.indent)) suspicion_ = {at_, frame.open};
  }

  /// Reads what stands between two members: true when the frame was closed instead.
  bool separator() {
    Frame& frame = frames_.back();
    const std::size_t previous_end = at_;
    bool line_break = skip_blank();
    require_more(frame);
    const std::size_t comma = at_;
    const bool has_comma = frame.count > 0 && peek() == ',';
    if (has_comma) {
      ++at_;
      line_break |= skip_blank();
      require_more(frame);
    }
    if (peek() == ',')
      throw SyntaxError{at_,
                        has_comma ? "a value is missing between two commas" : "a value is missing before this comma"};
    if (peek() == '}' || peek() == ']') {
      if (has_comma) {
        lenient(Leniency::kTrailingComma, comma);
        fix(comma, 1, "");
      }
      watch_layout(true);
      close();
      return true;
    }
    if (frame.count > 0 && !has_comma) {
      if (!line_break) throw SyntaxError{previous_end, missing_comma()};
      lenient(Leniency::kMissingComma, previous_end);
      fix(previous_end, 0, ",");
    }
    if (frame.count++ > 0) put(",");
    return false;
  }

  std::string missing_comma() const {
    if (peek() == ':')
      return "a ':' where a comma or a closing bracket should be; are the quotes around the key right?";
    return "a comma or a closing bracket is missing here";
  }

  void close() {
    const Frame frame = frames_.back();
    const char expected = frame.object ? '}' : ']';
    if (peek() != expected) {
      const TextPlaces places(text_.substr(0, at_ + 1));
      throw SyntaxError{at_, std::string("'") + peek() + "' closes the '" + (frame.object ? '{' : '[') + "' of line " +
                                 std::to_string(places.line(frame.open)) + "; a '" + expected + "' is missing"};
    }
    put(std::string(1, expected));
    ++at_;
    frames_.pop_back();
  }

  void member() {
    if (separator()) return;
    watch_layout(false);
    if (!key()) return;
    skip_blank();
    require_more(frames_.back());
    if (peek() == '=') throw SyntaxError{at_, "'=' stands where ':' should"};
    if (peek() != ':') throw SyntaxError{at_, "a ':' is missing after the key"};
    ++at_;
    put(":");
    skip_blank();
    require_more(frames_.back());
    value();
  }

  void element() {
    if (!separator()) value();
  }

  /// False for a placeholder that stands for whole members.
  bool key() {
    origin(at_);
    const std::size_t begin = at_;
    if (peek() == '"' || peek() == '\'') {
      string();
      if (at_ - begin > kLongestKey) {
        throw SyntaxError{begin, "a key of " + std::to_string(at_ - begin) + " bytes; the longest allowed has " +
                                     std::to_string(kLongestKey)};
      }
      return true;
    }
    if (next_is("{{")) {
      template_expression();
      return true;
    }
    const std::string word = take_word();
    if (word.empty())
      throw SyntaxError{begin, std::string("a key in double quotes is expected here, not '") + peek() + "'"};
    if (word == kDots) {
      placeholders_.push_back({begin, word});
      return false;
    }
    skip_blank();
    if (!at_end() && (peek() == ':' || peek() == '=')) {
      throw SyntaxError{begin, "a key needs double quotes: \"" + shortened(word) + "\""};
    }
    placeholders_.push_back({begin, shortened(word)});
    throw SyntaxError{begin,
                      "'" + shortened(word) + "' is not a key: keys stand in double quotes and are followed by ':'"};
  }

  void value() {
    const std::size_t begin = at_;
    origin(begin);
    const char c = peek();
    if (next_is("{{")) return template_expression();
    if (c == '{' || c == '[') return open();
    if (c == '"' || c == '\'') return string();
    if (c == '}' || c == ']' || c == ',' || c == ':')
      throw SyntaxError{begin, std::string("a value is missing before '") + c + "'"};
    word_or_number(begin);
  }

  void open() {
    if (frames_.size() >= kDeepestNesting) {
      throw SyntaxError{at_, "nested deeper than " + std::to_string(kDeepestNesting) + " levels"};
    }
    frames_.push_back({peek() == '{', at_, indent_of_line(at_)});
    put(text_.substr(at_, 1));
    ++at_;
  }

  void template_expression() {
    const std::size_t begin = at_;
    skip_past("}}", "this template expression is never closed");
    placeholders_.push_back({begin, shortened(text_.substr(begin, at_ - begin))});
    put("\"\"");
  }

  std::string take_word() {
    constexpr std::string_view kDelimiters = " \t\r\n,:=[]{}\"'#";
    const std::size_t begin = at_;
    while (!at_end() && kDelimiters.find(peek()) == std::string_view::npos && !next_is("//") && !next_is("/*")) ++at_;
    return std::string(text_.substr(begin, at_ - begin));
  }

  void word_or_number(std::size_t begin) {
    const std::string word = take_word();
    if (word == "null" || word == "true" || word == "false") return put(word);
    if (word == "None" || word == "True" || word == "False") {
      lenient(Leniency::kPythonLiteral, begin);
      const char* literal = word == "None" ? "null" : word == "True" ? "true" : "false";
      fix(begin, word.size(), literal);
      return put(literal);
    }
    if (word.empty()) throw SyntaxError{begin, "'=' stands where a value should"};
    if (is_choice(word) || word == kDots) {
      placeholders_.push_back({begin, shortened(word)});
      return put("\"\"");
    }
    const std::string_view magnitude =
        word.starts_with('-') || word.starts_with('+') ? std::string_view(word).substr(1) : std::string_view(word);
    if (magnitude == "NaN" || magnitude == "nan" || magnitude == "Infinity" || magnitude == "inf") {
      throw SyntaxError{begin, "'" + word + "' is not a value that a configuration can hold; write a finite number"};
    }
    if (!magnitude.empty() && (is_digit(magnitude[0]) || magnitude[0] == '.' || magnitude.size() != word.size())) {
      if (const std::string fault = number_fault(word); !fault.empty()) throw SyntaxError{begin, fault};
      return put(word);
    }
    placeholders_.push_back({begin, shortened(word)});
    put("\"\"");
  }

  void string() {
    const char quote = peek();
    const std::size_t begin = at_++;
    if (quote == '\'') lenient(Leniency::kSingleQuotes, begin);
    const std::size_t written = out_.text.size();
    put("\"");
    while (true) {
      if (at_end()) throw SyntaxError{begin, "this string is never closed"};
      const char c = peek();
      if (c == quote) break;
      if (c == '\\') {
        escape(quote);
      } else if (c == '\n' || c == '\r') {
        throw SyntaxError{begin, "this string is not closed on its line; is a quote missing?"};
      } else if (static_cast<unsigned char>(c) < 0x20) {
        throw SyntaxError{at_, "a control character inside a string; write it as an escape such as \\t"};
      } else {
        if (c == '"') put("\\");
        put(text_.substr(at_++, 1));
      }
    }
    ++at_;
    note_template(begin, std::string_view(out_.text).substr(written + 1));
    put("\"");
    if (quote == '\'') fix(begin, at_ - begin, out_.text.substr(written));
  }

  /// "{{ stage }}" and "${STAGE}" as a whole string are placeholders too.
  void note_template(std::size_t begin, std::string_view content) {
    const bool jinja = content.starts_with("{{") && content.ends_with("}}");
    const bool shell = content.starts_with("${") && content.find('}') == content.size() - 1;
    if (jinja || shell) placeholders_.push_back({begin, shortened(content)});
    const bool choice = content.starts_with('[') && content.ends_with(']') && content.find('|') != content.npos;
    if (choice) choices_.push_back({begin, shortened(content)});
  }

  void escape(char quote) {
    const std::size_t begin = at_++;
    if (at_end()) throw SyntaxError{begin, "the file ends inside a string"};
    const char c = peek();
    if (c == 'u') return unicode_escape(begin);
    if (c == '\'' && quote == '\'') {
      put("'");
    } else if (std::string_view("\"\\/bfnrt").find(c) != std::string_view::npos) {
      put(text_.substr(begin, 2));
    } else {
      throw SyntaxError{begin, "JSON has no such escape; a backslash itself is written \\\\"};
    }
    ++at_;
  }

  /// The four digits behind \u. Throws when they are not there.
  unsigned hex_digits(std::size_t begin) {
    unsigned code = 0;
    ++at_;
    for (int i = 0; i < 4; ++i, ++at_) {
      const char c = at_end() ? ' ' : peek();
      const int digit = is_digit(c)            ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) throw SyntaxError{begin, "\\u needs four hexadecimal digits"};
      code = code * 16 + static_cast<unsigned>(digit);
    }
    return code;
  }

  void unicode_escape(std::size_t begin) {
    const unsigned first = hex_digits(begin);
    const bool high = first >= 0xD800 && first < 0xDC00;
    bool complete = first < 0xD800 || first >= 0xE000;
    if (high && next_is("\\u")) {
      ++at_;
      const unsigned second = hex_digits(begin);
      complete = second >= 0xDC00 && second < 0xE000;
    }
    if (!complete) throw SyntaxError{begin, "half of a surrogate pair: such a \\u escape needs its other half"};
    put(text_.substr(begin, at_ - begin));
  }

  std::string_view text_;
  std::size_t at_ = 0;
  std::vector<Frame> frames_;
  std::optional<Suspicion> suspicion_;
  std::vector<Placeholder> placeholders_, choices_;
  std::map<Leniency, std::size_t> leniencies_;
  StrictJson out_;
};

void add_at(Problems& problems, Problem::Severity severity, const TextPlaces& places, std::size_t offset,
            std::string message) {
  problems.all().push_back({severity, "", std::move(message), places.line(offset), places.column(offset)});
}

/// Each placeholder once, with the line where it stands first: "GB_SIZE (line 2), LR (line 9)".
std::string listed(const std::vector<Placeholder>& placeholders, const TextPlaces& places) {
  constexpr std::size_t kMost = 50;
  std::set<std::string_view> seen;
  std::string text;
  for (const Placeholder& one : placeholders) {
    if (!seen.insert(one.text).second) continue;
    if (seen.size() > kMost) return text + ", ..";
    text += (text.empty() ? "" : ", ") + one.text + " (line " + std::to_string(places.line(one.offset)) + ")";
  }
  return text;
}

/// A lone unknown word is a slip; several, or template syntax, make a template.
std::string placeholder_text(const std::vector<Placeholder>& placeholders, const TextPlaces& places) {
  const std::string& first = placeholders.front().text;
  const bool alone = placeholders.size() == 1;
  const bool choices = std::all_of(placeholders.begin(), placeholders.end(),
                                   [](const Placeholder& one) { return is_choice(one.text) || one.text == kDots; });
  if (alone && is_choice(first))
    return "'" + first + "' is the notation of a choice; write the one value that is meant";
  if (alone && first == kDots) return "'...' is a placeholder; write what it stands for or remove it";
  if (alone && !is_template_syntax(first)) {
    return "'" + first +
           "' is not a JSON value: text needs double quotes. If it is the placeholder of a template, fill it in first";
  }
  if (choices) {
    return "this is the notation of documentation: " + listed(placeholders, places) +
           ". Write the one value that is meant, and what '...' stands for";
  }
  return "this is an unfilled template: " + std::to_string(placeholders.size()) +
         (alone ? " placeholder, " : " placeholders, ") + listed(placeholders, places) +
         ". Fill it in (with the program or the sed script that it was written for) before using it";
}

}  // namespace

std::optional<StrictJson> make_strict(std::string_view text, Problems& problems) {
  if (text.size() > kLargestText) {
    problems.error(
        "", "larger than 16 MiB (" + std::to_string(text.size()) + " bytes); a configuration has a few kilobytes.");
    return std::nullopt;
  }
  const TextPlaces places(text);
  if (const auto wrong = first_invalid_utf8(text)) {
    const bool wide = text.starts_with("\xFF\xFE") || text.starts_with("\xFE\xFF");
    add_at(problems, Problem::Severity::kError, places, *wrong,
           wide ? "this is UTF-16; save the file as UTF-8." : "not UTF-8 text from here on; save the file as UTF-8.");
    return std::nullopt;
  }
  Lexer lexer(text);
  std::optional<SyntaxError> fault;
  try {
    lexer.run();
  } catch (const SyntaxError& error) {
    fault = error;
  }
  if (const auto placeholders = lexer.placeholders(); !placeholders.empty()) {
    add_at(problems, Problem::Severity::kError, places, placeholders.front().offset,
           placeholder_text(placeholders, places) + ".");
    return std::nullopt;
  }
  if (fault) {
    const bool complete = fault->message.ends_with('?');
    add_at(problems, Problem::Severity::kError, places, fault->offset, fault->message + (complete ? "" : "."));
    return std::nullopt;
  }
  for (const auto& [what, offset] : lexer.leniencies()) {
    add_at(problems, Problem::Severity::kWarning, places, offset,
           std::string(kLeniencyTexts[static_cast<std::size_t>(what)]) + ".");
  }
  return lexer.take();
}

}  // namespace capstan
