#define PCRE2_CODE_UNIT_WIDTH 8
#include "core/text/tokenizer/regex.hpp"

#include <pcre2.h>

#include <cctype>
#include <new>
#include <utility>

#include "core/errors.hpp"
#include "core/text/tokenizer/unicode.hpp"

namespace capstan::tokenizer {
namespace {

// PCRE2's \s has U+180E, which left White_Space with Unicode 6.3.
constexpr const char* kWhiteSpaceClass =
    "\\x{09}-\\x{0d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}";
constexpr const char* kWordClass = "\\p{L}\\p{M}\\p{Nd}\\p{Pc}";
constexpr const char* kHexClass = "0-9a-fA-F";

/// Rewrites Oniguruma's syntax to PCRE2's. Throws std::string where a construct has no equal.
class Rewriter {
 public:
  explicit Rewriter(std::string_view pattern) : from_(pattern) {}

  std::string rewrite() {
    while (at_ < from_.size()) {
      if (from_[at_] == '\\' && at_ + 1 < from_.size()) {
        escape();
      } else if (in_class_) {
        class_character();
      } else {
        character();
      }
    }
    return std::move(out_);
  }

 private:
  bool begins(std::string_view text) const { return from_.substr(at_).starts_with(text); }

  void escape() {
    const char letter = from_[at_ + 1];
    const char lower = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
    const char* of = lower == 's' ? kWhiteSpaceClass : lower == 'w' ? kWordClass : lower == 'h' ? kHexClass : nullptr;
    if (of != nullptr && (letter == lower || !in_class_)) {
      out_ += in_class_ ? of : (letter == lower ? "[" : "[^") + std::string(of) + "]";
    } else if (letter == 'H' || letter == 'W') {
      throw std::string("'\\") + letter + "' within a class";
    } else {
      out_.append(from_, at_, 2);
    }
    at_ += 2;
  }

  void class_character() {
    if (begins("&&")) throw std::string("'&&' within a class");
    if (from_[at_] == '[' && !begins("[:")) throw std::string("a class within a class");
    if (begins("[:")) {
      const std::size_t end = from_.find(":]", at_);
      if (end == std::string_view::npos) throw std::string("'[:' within a class");
      out_.append(from_, at_, end + 2 - at_);
      at_ = end + 2;
      return;
    }
    if (from_[at_] == ']') in_class_ = false;
    out_ += from_[at_++];
  }

  void character() {
    if (begins("(?m")) throw std::string("the option 'm'");
    if (from_[at_] == '{' && interval_repeats()) throw std::string("an interval that is repeated, '{n,m}+'");
    if (from_[at_] != '[') {
      out_ += from_[at_++];
      return;
    }
    in_class_ = true;
    out_ += from_[at_++];
    if (at_ < from_.size() && from_[at_] == '^') out_ += from_[at_++];
    // A bracket in the first place stands for itself.
    if (at_ < from_.size() && from_[at_] == ']') {
      out_ += "\\]";
      ++at_;
    }
  }

  /// "{2,3}+", which repeats the interval in Ruby and makes it possessive in PCRE2.
  bool interval_repeats() const {
    const std::size_t end = from_.find_first_not_of("0123456789,", at_ + 1);
    return end != std::string_view::npos && end > at_ + 1 && from_.substr(end).starts_with("}+");
  }

  std::string_view from_;
  std::string out_;
  std::size_t at_ = 0;
  bool in_class_ = false;
};

std::string message_of(int error) {
  PCRE2_UCHAR text[256];
  pcre2_get_error_message(error, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

struct FreesPcre {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
  void operator()(pcre2_compile_context* context) const { pcre2_compile_context_free(context); }
};

}  // namespace

/// One thread's matches.
struct Regex::Matching {
  explicit Matching(const Regex& of)
      : regex(of), data(pcre2_match_data_create(1, nullptr)), context(pcre2_match_context_create(nullptr)) {
    if (!data || !context) throw std::bad_alloc();
    pcre2_set_heap_limit(context.get(), 100'000);  // KiB
  }

  /// The first match at or behind `at`. Returns whether one is there.
  bool next(std::string_view text, std::size_t at, Range& match) {
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    int found = pcre2_match(regex.code_.get(), subject, text.size(), at, PCRE2_NO_UTF_CHECK, data.get(), context.get());
    if (found == PCRE2_ERROR_JIT_STACKLIMIT) {
      found = pcre2_match(regex.code_.get(), subject, text.size(), at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data.get(),
                          context.get());
    }
    if (found == PCRE2_ERROR_NOMATCH) return false;
    if (found < 0) {
      throw RuntimeFault("the pattern '" + regex.pattern_ + "' cannot be matched with a text of " +
                         std::to_string(text.size()) + " bytes: " + message_of(found) + ".");
    }
    const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(data.get());
    match = {ends[0], ends[1]};
    return true;
  }

  const Regex& regex;
  std::unique_ptr<pcre2_match_data, FreesPcre> data;
  std::unique_ptr<pcre2_match_context, FreesPcre> context;
};

Regex::Regex(const Field& field) : pattern_(field.text()) {
  std::string problem;
  compile(pattern_, problem);
  if (!problem.empty()) field.fail(problem);
}

Regex::Regex(std::string_view pattern) : pattern_(pattern) {
  std::string problem;
  compile(pattern_, problem);
  if (!problem.empty()) throw RuntimeFault(problem);
}

void Regex::compile(const std::string& pattern, std::string& problem) {
  std::string rewritten;
  try {
    rewritten = Rewriter(pattern).rewrite();
  } catch (const std::string& construct) {
    problem = "the pattern '" + pattern + "' has " + construct + ", which Capstan does not support.";
    return;
  }
  const std::unique_ptr<pcre2_compile_context, FreesPcre> context(pcre2_compile_context_create(nullptr));
  if (!context) throw std::bad_alloc();
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE at = 0;
  // Ruby's ^ and $ are those of lines.
  code_ = {pcre2_compile(reinterpret_cast<PCRE2_SPTR>(rewritten.data()), rewritten.size(),
                         PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, &error, &at, context.get()),
           [](pcre2_code* code) { pcre2_code_free(code); }};
  if (!code_) {
    problem = "the pattern '" + pattern + "' is not a regular expression: " + message_of(error) + ", at byte " +
              std::to_string(at) + " of '" + rewritten + "'.";
    return;
  }
  // Without a JIT the interpreter matches.
  pcre2_jit_compile(code_.get(), PCRE2_JIT_COMPLETE);
}

void Regex::find(std::string_view text, std::vector<Range>& matches) const {
  Matching matching(*this);
  std::size_t at = 0, last_end = std::string_view::npos;
  for (Range match{}; at <= text.size() && matching.next(text, at, match);) {
    if (match.size() == 0 && match.end == last_end) {
      at += at < text.size() ? length_of(text[at]) : 1;
      continue;
    }
    matches.push_back(match);
    at = last_end = match.end;
  }
}

}  // namespace capstan::tokenizer
