#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "capstan/sdk/indexed_file.hpp"

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

  /// `count` tokens from `begin` on. `vocabulary` > 0: a token that is not below it, or negative, is an error naming
  /// file and place. Several threads may read.
  void read(std::int64_t begin, std::int64_t count, std::int64_t vocabulary, std::int64_t* out) const;

  /// A digest of names, sizes and samples of the content.
  std::uint64_t fingerprint() const;

 private:
  struct Part {
    sdk::IndexedRows rows;
    std::string name;  // of the file, without its folder
    std::int64_t first_token, first_document, documents;
    std::optional<sdk::MappedFile> mask;  // a bit a token, the first in the lowest bit of the first byte
  };

  void add(const std::string& name);
  std::vector<Part>::const_iterator part_of(std::int64_t token) const;

  std::vector<Part> parts_;
  std::int64_t tokens_ = 0, documents_ = 0;
};

}  // namespace capstan::indexed
