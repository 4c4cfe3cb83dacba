#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cli/data/chat_encoder.hpp"
#include "cli/data/token_output.hpp"

namespace capstan::cli {

/// First fit over sorted sizes (Johnson 1973, "Near-optimal bin packing algorithms"): the longest document first, of
/// equal ones the one that comes first, each into the first row that has room. The result: the documents of each row,
/// by their places in `sizes`, in the order in which they came in. Each size is 1 to `length`.
std::vector<std::vector<std::size_t>> first_fit(const std::vector<std::int64_t>& sizes, std::int64_t length);

/// Writes documents in rows of `length` tokens. A window of 10,000 documents, or of 64 Mi tokens where these are fewer
/// documents, is packed by itself, so that rows are a function of the documents alone and memory is bounded.
class RowPacker {
 public:
  /// What becomes of a document that is longer than a row.
  enum class Long { kCut, kDrop };

  RowPacker(TokenOutput& to, std::int64_t length, Long too_long) : to_(to), length_(length), long_(too_long) {}

  void take(EncodedRow document);
  /// Writes the rest.
  void finish();

  std::int64_t long_documents = 0, long_tokens = 0;  // those cut or dropped; the tokens lost with them
  std::int64_t without_label = 0,
               tokens_without_label = 0;  // documents left out, as the loss counts none of their tokens

 private:
  void write_window();

  TokenOutput& to_;
  std::int64_t length_;
  Long long_;
  std::vector<EncodedRow> window_;
  std::int64_t window_tokens_ = 0;
};

/// Counts the rows of `length` tokens into which RowPacker packs documents of such sizes, each 1 to `length`.
class RowCount {
 public:
  explicit RowCount(std::int64_t length) : length_(length) {}

  void add(std::int64_t size);
  std::int64_t rows() const;

 private:
  std::int64_t length_, rows_ = 0;  // of windows before this one
  std::vector<std::int64_t> window_;
  std::int64_t window_tokens_ = 0;
};

}  // namespace capstan::cli
