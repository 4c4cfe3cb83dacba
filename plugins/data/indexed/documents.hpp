#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "capstan/sdk/indexed_file.hpp"
#include "capstan/sdk/packed_rows.hpp"

namespace capstan::indexed {

/// The tokens of several indexed files, one after another, and the documents into which they fall.
class Documents {
 public:
  struct Place {
    std::int64_t begin = 0, size = 0;  // tokens; `begin` counted over all files
  };

  /// `paths`: NAME, NAME.idx, NAME.bin, or folders whose .idx files are taken, sorted by name. Looks at every row.
  /// Throws sdk::Error naming the file.
  explicit Documents(const std::vector<std::string>& paths);

  std::int64_t tokens() const { return tokens_; }
  std::int64_t documents() const { return documents_; }
  /// The .idx files, in order, and the tokens of each.
  std::vector<std::pair<std::string, std::int64_t>> indices() const;
  /// Whether a loss mask, NAME.loss, lies beside any of the files.
  bool has_loss_masks() const;
  /// Whether the loss counts a token, counted over all files: what its file's mask says; yes without a mask.
  bool counts(std::int64_t token) const;
  Place document(std::int64_t number) const;

  /// Rows of documents that NAME.rows lies beside; 0 where no file has it. Throws sdk::Error where some files have it
  /// and others have not.
  std::int64_t rows() const;
  /// Tokens that the longest of the rows has room for.
  std::int64_t row_length() const;
  /// The documents of a row, counted over all files: from the first number up to the second.
  std::pair<std::int64_t, std::int64_t> row(std::int64_t number) const;

  /// `count` tokens from `begin` on. `vocabulary` > 0: a token that is not below it, or negative, is an error naming
  /// file and place. Several threads may read.
  void read(std::int64_t begin, std::int64_t count, std::int64_t vocabulary, std::int64_t* out) const;

  /// A digest of names, sizes and samples of the content; `of_rows`: and of what shares a row.
  std::uint64_t fingerprint(bool of_rows) const;

 private:
  struct Part {
    sdk::IndexedRows rows;
    std::string name;  // of the file, without its folder
    std::int64_t first_token, first_document, documents;
    std::optional<sdk::MappedFile> mask;   // a bit a token, the first in the lowest bit of the first byte
    std::int64_t row_length;               // tokens that a row has room for; 0: without NAME.rows
    std::vector<std::int64_t> row_begins;  // documents, and behind them their number; empty without NAME.rows
  };

  void add(const std::string& name);
  void add_rows(Part& part, const std::string& name);
  std::vector<Part>::const_iterator part_of(std::int64_t token) const;

  std::vector<Part> parts_;
  std::vector<std::int64_t> first_rows_;  // of each part
  std::int64_t tokens_ = 0, documents_ = 0, rows_ = 0;
};

}  // namespace capstan::indexed
