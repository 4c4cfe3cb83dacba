#include "core/config/toml.hpp"

#include <algorithm>
#include <vector>

#include "core/errors.hpp"

// toml++ 3.3 asserts on some malformed input (such as "[#") right before it reports the same thing as an error. The
// release build would turn some of these assertions into assumptions, which is no better: leave neither.
#define TOML_EXCEPTIONS 1
#define TOML_ENABLE_FORMATTERS 0
#define TOML_MAX_NESTED_VALUES 64
#define TOML_ASSERT(expr) static_assert(true)
#include <toml++/impl/preprocessor.h>
#undef TOML_ASSERT_ASSUME
#define TOML_ASSERT_ASSUME(expr) static_assert(true)
#include <toml++/toml.h>

namespace capstan {
namespace {

// toml++ bounds the nesting of values, but not that of dotted keys, and its destructors recurse.
constexpr int kMaxKeyParts = 64;

[[noreturn]] void fail(const std::string& source, std::size_t line, std::size_t column, const std::string& message) {
  throw ConfigError(source + ":" + std::to_string(line) + ":" + std::to_string(column) + ": " + message);
}

/// Finds the byte of a line and column (in code points), as toml++ counts them.
class Positions {
 public:
  explicit Positions(std::string_view text) {
    lines_.push_back(0);
    for (std::size_t i = text.starts_with("\xEF\xBB\xBF") ? 3 : 0; i < text.size(); ++i) {
      if ((static_cast<unsigned char>(text[i]) & 0xC0) != 0x80) bytes_.push_back(i);
      if (text[i] == '\n') lines_.push_back(bytes_.size());
    }
    bytes_.push_back(text.size());
  }

  std::size_t offset(const toml::source_position& at) const {
    const std::size_t line = std::clamp<std::size_t>(at.line, 1, lines_.size());
    const std::size_t column = std::max<std::size_t>(at.column, 1);
    return bytes_[std::min(lines_[line - 1] + column - 1, bytes_.size() - 1)];
  }

 private:
  std::vector<std::size_t> bytes_;  // of each code point
  std::vector<std::size_t> lines_;  // first code point of each line
};

/// The end of the string that opens at `at`; the end of the text when it is not closed.
std::size_t skip_string(std::string_view text, std::size_t at) {
  const char quote = text[at];
  const std::string triple(3, quote);
  const bool multi_line = text.substr(at, 3) == triple;
  for (std::size_t i = at + (multi_line ? 3 : 1); i < text.size(); ++i) {
    if (text[i] == '\\' && quote == '"') {
      ++i;
    } else if (multi_line ? text.substr(i, 3) == triple : text[i] == quote) {
      return i + (multi_line ? 3 : 1);
    } else if (text[i] == '\n' && !multi_line) {
      return i;
    }
  }
  return text.size();
}

/// Refuses keys of absurd depth before the library builds a table for each part.
void check_key_depth(std::string_view text, const std::string& source) {
  int dots = 0;
  for (std::size_t i = 0; i < text.size();) {
    const char c = text[i];
    if (c == '"' || c == '\'') {
      i = skip_string(text, i);
      continue;
    }
    if (c == '#') {
      i = std::min(text.find('\n', i), text.size());
      continue;
    }
    if (c == '.' && ++dots >= kMaxKeyParts) {
      const auto before = text.substr(0, i);
      fail(source, 1 + std::count(before.begin(), before.end(), '\n'), i - (before.rfind('\n') + 1) + 1,
           "not valid TOML here: a key may have at most " + std::to_string(kMaxKeyParts) + " parts.");
    }
    if (std::string_view("=,[]{}\n").find(c) != std::string_view::npos) dots = 0;
    ++i;
  }
}

class Converter {
 public:
  Converter(const Positions& positions, const std::string& source) : positions_(positions), source_(source) {}

  Json convert(const toml::node& node) const {
    Json made = make(node);
    made.set_offset(positions_.offset(node.source().begin));
    return made;
  }

 private:
  Json make(const toml::node& node) const {
    if (const auto* table = node.as_table()) return members(*table);
    if (const auto* array = node.as_array()) {
      Json made = Json::array();
      for (const auto& item : *array) made.push_back(convert(item));
      return made;
    }
    if (const auto* value = node.as_boolean()) return Json(value->get());
    if (const auto* value = node.as_integer()) return Json(std::int64_t{value->get()});
    if (const auto* value = node.as_floating_point()) return Json(value->get());
    if (const auto* value = node.as_string()) return Json(value->get());
    const auto& at = node.source().begin;
    fail(source_, at.line, at.column, "dates and times have no meaning here. Write a string in quotes.");
  }

  Json members(const toml::table& table) const {
    Json::Object made;
    for (const auto& [key, value] : table) {
      made.emplace_back(std::string(key.str()), convert(value));
      made.back().second.set_offset(positions_.offset(key.source().begin));
    }
    // The library sorts members by name.
    std::stable_sort(made.begin(), made.end(), [](const Json::Member& a, const Json::Member& b) {
      return a.second.offset() < b.second.offset();
    });
    return Json(std::move(made));
  }

  const Positions& positions_;
  const std::string& source_;
};

}  // namespace

Json parse_toml(std::string_view text, const std::string& source) {
  check_key_depth(text, source);
  try {
    const toml::table table = toml::parse(text);
    return Converter(Positions(text), source).convert(table);
  } catch (const toml::parse_error& error) {
    std::string description(error.description());
    if (description.starts_with("Error while ")) description = "while " + description.substr(12);
    fail(source, error.source().begin.line, error.source().begin.column, "not valid TOML: " + description + ".");
  }
}

}  // namespace capstan
