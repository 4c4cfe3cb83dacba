#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "cli/data/length_counts.hpp"
#include "cli/data/packing.hpp"
#include "core/text/json.hpp"

namespace capstan::cli {

/// What documents of one or several files add up to. Memory does not grow with the documents, but with their different
/// lengths.
class DocumentStats {
 public:
  /// `row_length`: the tokens of a row for which padding and packing are counted; 0: of packed files alone.
  explicit DocumentStats(std::int64_t row_length);

  /// Takes a document of `tokens`, of which the loss counts `counted`; nothing: there is no mask.
  void add(std::int64_t tokens, std::optional<std::int64_t> counted);
  /// `documents` of `tokens` tokens in all, which were added as well, lie in `rows` rows of `length` tokens.
  void add_rows(std::int64_t rows, std::int64_t length, std::int64_t documents, std::int64_t tokens);

  std::map<std::string, std::int64_t> roles;  // tokens of the contents of messages, by role; empty: no conversations
  std::int64_t without_label = 0;             // documents that are left out, as the loss counts none of their tokens
  std::string unit = "token";                 // "byte" where no tokenizer is known

  std::int64_t documents() const { return lengths_.documents(); }
  /// The counts, as the page on data describes them. At least one document was taken.
  Json json() const;
  /// The counts for a person, `width` columns wide at most.
  std::string text(int width) const;

 private:
  Json packing_json() const;
  /// The share of the rows of packed files that no token fills.
  double padding() const;

  LengthCounts lengths_;
  std::int64_t row_length_;
  bool has_mask_ = false;
  std::int64_t counted_ = 0;
  std::int64_t rows_ = 0, room_ = 0;                 // of packed files: rows, and tokens that they have room for
  std::int64_t row_documents_ = 0, row_tokens_ = 0;  // that lie in these rows
  std::optional<RowCount> packed_;                   // what packing would make of documents that are not packed
};

}  // namespace capstan::cli
