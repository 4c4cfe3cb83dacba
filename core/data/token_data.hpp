#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "core/model/batch.hpp"

namespace capstan {

/// Tokens of text files (bytes) or of pre-tokenised .bin files (little-endian uint16: nanoGPT's, which are bare, and
/// llm.c's, which have a header), memory-mapped, one after another as find_data_files (data_files.hpp) orders them.
///
/// n_samples = (tokens - 1) / sequence_length; sample i is tokens [i*T, i*T + T + 1).
class TokenData {
 public:
  /// kAuto: uint16 when every file ends in ".bin", bytes when none does; a mixture is an error.
  enum class Format { kAuto, kBytes, kUint16 };

  /// `paths`: files or folders (searched recursively; kUint16 takes only .bin files from a folder). Throws
  /// RuntimeFault: missing, unreadable, empty, shorter than a sequence, an odd number of bytes or a bad header for
  /// uint16; each names the path.
  TokenData(const std::vector<std::string>& paths, Format format, std::int64_t sequence_length);
  ~TokenData();
  TokenData(TokenData&&) noexcept;

  std::int64_t samples() const;
  std::int64_t tokens() const;
  std::int64_t sequence_length() const;
  /// A digest of names, sizes and content samples, so that a resumed run can tell other data.
  std::uint64_t fingerprint() const;

  /// From now on a token that is not below `size` is an error of read(): the model has no row for it.
  void set_vocabulary(std::int64_t size);

  /// Writes sample `index`'s T+1 tokens. `index` < samples(). Throws RuntimeFault when a file was shortened meanwhile
  /// or holds a token beyond the vocabulary, naming file and place. Several threads may read.
  void read(std::int64_t index, std::int64_t* out) const;

 private:
  struct Files;
  std::unique_ptr<Files> files_;
};

/// Gives micro-batches in an order that is a function of the global sample number and the seed only, so that resuming
/// is setting that number, on any world size.
class BatchOrder {
 public:
  /// shuffle: each pass over the data is a permutation of its own (a keyed bijection, no table); otherwise sample
  /// number n is n mod samples.
  BatchOrder(std::int64_t samples, std::uint64_t seed, bool shuffle);
  /// The sample that stands at global position `n` (0 for the first of the run). Throws std::invalid_argument for a
  /// negative one.
  std::int64_t sample(std::int64_t n) const;

 private:
  std::int64_t samples_;
  std::uint64_t seed_;
  bool shuffle_;
};

/// input_ids [rows, T] and labels [rows, T], int64: rows n, n+1, ... of the order.
Batch token_batch(const TokenData& data, const BatchOrder& order, std::int64_t first, std::int64_t rows);

}  // namespace capstan
