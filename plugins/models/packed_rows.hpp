#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tokens.hpp"

namespace capstan::models {

/// Rows that hold several documents each, whose tokens attend to those of their own document alone.
class PackedRows {
 public:
  /// `document_ids`: int32 [rows, tokens], neighbours of one id being tokens of one document. `position_ids`: int64
  /// [rows, tokens], from 0 on in each document. Copies the ids to host memory, which waits for their device.
  PackedRows(at::Tensor document_ids, at::Tensor position_ids);

  /// Of the tokens at `places` of each row, int64 [rows or 1, tokens that are left]: those that a component keeps.
  PackedRows kept(const at::Tensor& places) const;

  const at::Tensor& positions() const { return position_ids_; }
  /// Tokens of each document: those of the first row, then those of the second, ...
  const std::vector<std::int64_t>& lengths() const { return lengths_; }
  /// Whether no token was left out.
  bool is_whole() const { return !whole_lengths_.defined(); }
  /// Tokens that the document of each token has, or had before some were left out: int64 [rows, tokens].
  at::Tensor whole_lengths() const;

  /// `heads`, [rows, heads, tokens, width], cut into documents: [1, heads, tokens of the document, width] each.
  std::vector<at::Tensor> split(const at::Tensor& heads) const;
  /// positions() of each document: [tokens of the document].
  std::vector<at::Tensor> split_positions() const;
  /// The documents of split() as one row behind another, [1, heads, rows * tokens, width].
  static at::Tensor join(const std::vector<at::Tensor>& documents);

 private:
  at::Tensor document_ids_, position_ids_, whole_lengths_;
  std::vector<std::int64_t> lengths_;
};

/// Takes "document_ids" and "position_ids" from a batch whose inputs, as read_inputs() gives them, have `sizes`;
/// nothing where the batch has neither. Throws sdk::Error where one is missing or is not as PackedRows wants it.
std::optional<PackedRows> read_packed_rows(const sdk::BatchView& batch, at::IntArrayRef sizes);

/// Looks at a batch that is still in host memory: throws what read_packed_rows() throws, and sdk::Error naming a
/// position that is not among the model's `sequence_length`.
void check_packed_rows(const sdk::BatchView& batch, std::int64_t sequence_length, const TokenBounds& bounds = {});

/// What a model that reads such rows says of them in describe(): a member of a JSON object.
inline const char* const kReadsPackedRows = "\"reads\": [\"document_ids\", \"position_ids\"]";

}  // namespace capstan::models
