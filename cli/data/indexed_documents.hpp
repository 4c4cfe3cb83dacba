#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "capstan/sdk/indexed_file.hpp"
#include "capstan/sdk/packed_rows.hpp"

namespace capstan::cli {

/// Tokens of documents in NAME.idx and NAME.bin, with what lies beside them: which tokens the loss counts, in
/// NAME.loss, and which documents share a row, in NAME.rows. Mapped: memory does not grow with the files.
class IndexedDocuments {
 public:
  struct Place {
    std::int64_t begin = 0, size = 0;  // tokens
  };

  /// `path`: NAME, NAME.idx or NAME.bin. Throws sdk::Error naming the file: one that is damaged, or that belongs to
  /// other tokens.
  explicit IndexedDocuments(const std::string& path);

  std::int64_t documents() const { return documents_; }
  std::int64_t tokens() const { return index_.values(); }
  const std::string& index_path() const { return index_.index_path(); }
  Place document(std::int64_t number) const;

  bool is_packed() const { return packed_.has_value(); }
  /// Tokens that a row has room for; 0 where rows are not packed.
  std::int64_t row_length() const { return packed_ ? packed_->length() : 0; }
  /// A document is a row where rows are not packed.
  std::int64_t rows() const { return packed_ ? packed_->rows() : documents_; }
  /// The first document of a row, and of rows() the number of documents.
  std::int64_t first_document(std::int64_t row) const { return packed_ ? packed_->first_document(row) : row; }

  bool has_mask() const { return mask_.has_value(); }
  /// Whether the loss counts a token; yes without a mask.
  bool counts(std::int64_t token) const;
  /// How many tokens of a place the loss counts.
  std::int64_t counted(const Place& place) const;

  std::vector<std::int64_t> read(const Place& place) const;

 private:
  std::int64_t token_of(std::int64_t document) const;

  sdk::IndexedRows index_;
  std::optional<sdk::MappedFile> mask_;  // a bit a token, the first in the lowest bit of the first byte
  std::optional<sdk::PackedRows> packed_;
  std::int64_t documents_ = 0;
};

}  // namespace capstan::cli
