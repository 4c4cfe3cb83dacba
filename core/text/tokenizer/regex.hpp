#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/text/tokenizer/field.hpp"

struct pcre2_real_code_8;

namespace capstan::tokenizer {

/// Bytes [begin, end) of a text.
struct Range {
  std::size_t begin, end;
  std::size_t size() const { return end - begin; }
};

/// A pattern in Oniguruma's Ruby syntax, as tokenizer.json has it, compiled by PCRE2 with its JIT. Classes are
/// rewritten where the two disagree: \s is White_Space, \w is letters, marks, decimal digits and connectors. Several
/// threads may match with one.
class Regex {
 public:
  /// `field` holds the pattern. Throws RuntimeFault with its place and PCRE2's reason, or naming syntax that the two
  /// engines read differently.
  explicit Regex(const Field& field);
  explicit Regex(std::string_view pattern);

  /// Appends all matches from left to right. An empty match counts unless it lies at the end of the match before it.
  /// Throws RuntimeFault where a text needs more steps or memory than PCRE2's limits allow.
  void find(std::string_view text, std::vector<Range>& matches) const;

 private:
  struct Matching;
  void compile(const std::string& pattern, std::string& problem);

  std::string pattern_;
  std::shared_ptr<pcre2_real_code_8> code_;
};

}  // namespace capstan::tokenizer
