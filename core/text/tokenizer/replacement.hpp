#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/text/tokenizer/field.hpp"
#include "core/text/tokenizer/regex.hpp"

namespace capstan::tokenizer {

/// The member "pattern" of a section: {"String": "..."}, which stands for itself, or {"Regex": "..."}.
class Pattern {
 public:
  explicit Pattern(const Field& section);
  /// Appends all matches from left to right.
  void find(std::string_view text, std::vector<Range>& matches) const;

 private:
  std::string literal_;
  std::optional<Regex> regex_;
};

/// The members "pattern" and "content" of a section: puts the content in place of each match.
class Replacement {
 public:
  explicit Replacement(const Field& section);
  void apply(std::string& text) const;

 private:
  Pattern pattern_;
  std::string content_;
};

}  // namespace capstan::tokenizer
