#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "token_record.hpp"

namespace capstan::data {

/// Tokens of text files (bytes) or of pre-tokenised .bin files (little-endian uint16 or uint32: nanoGPT's, which are
/// bare, and llm.c's, which have a header), memory-mapped, one after another as find_data_files (data_files.hpp) orders
/// them.
///
/// n_samples = (tokens - 1) / sequence_length; sample i is tokens [i*T, i*T + T + 1).
class TokenData {
 public:
  /// kAuto: bytes when no file ends in ".bin"; when every file does, what the first one's record or llm.c's header
  /// says, or else uint16; a mixture is an error.
  using RecordOf = std::function<std::optional<TokenRecord>(const std::filesystem::path&)>;
  enum class Format { kAuto, kBytes, kUint16, kUint32 };

  /// `paths`: files or folders (searched recursively; kUint16 and kUint32 take only .bin files from a folder). Throws
  /// sdk::Error: missing, unreadable, empty, shorter than a sequence, bytes that are no whole number of tokens, a
  /// bad header, a file that is not what its record says; each names the path. `said` is told what a user may want to
  /// know. `record_of` gives the record of a .bin file, where there is one.
  TokenData(const std::vector<std::string>& paths, Format format, std::int64_t sequence_length,
            const std::function<void(const std::string&)>& said = {}, const RecordOf& record_of = {});
  ~TokenData();
  TokenData(TokenData&&) noexcept;

  std::int64_t samples() const;
  std::int64_t tokens() const;
  std::int64_t sequence_length() const;
  /// Whether a token is a byte of a file.
  bool are_bytes() const;
  /// A digest of names, sizes and content samples, so that a resumed run can tell other data.
  std::uint64_t fingerprint() const;

  /// From now on a token that is not below `size` is an error of read(): the model has no row for it. Throws sdk::Error
  /// where a record says that a file has one.
  void set_vocabulary(std::int64_t size);

  /// Writes sample `index`'s T+1 tokens. `index` < samples(). Throws sdk::Error when a file was shortened meanwhile
  /// or holds a token beyond the vocabulary, naming file and place. Several threads may read.
  void read(std::int64_t index, std::int64_t* out) const;

 private:
  struct Files;
  std::unique_ptr<Files> files_;
};

}  // namespace capstan::data
