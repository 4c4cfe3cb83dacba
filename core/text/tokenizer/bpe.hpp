#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "core/text/tokenizer/merge_table.hpp"
#include "core/text/tokenizer/model.hpp"

namespace capstan::tokenizer {

/// Byte-pair encoding (Sennrich et al. 2016): the tokens of a piece's characters, of which neighbours are merged by the
/// ranks of their pairs, of equal ranks the leftmost first.
class Bpe final : public Model {
 public:
  Bpe(const Field& section, bool takes_bytes);
  /// Whether the model of a section has a token for the character of each byte, whatever stands around it.
  static bool can_take_bytes(const Field& section);

  const Vocabulary& vocabulary() const override { return vocabulary_; }
  std::unique_ptr<PieceEncoder> encoder() const override;

  /// Appends the tokens of a piece's characters, or of its bytes, before any merge.
  void append_symbols(std::string_view piece, Ids& symbols) const;
  const MergeTable& merges() const { return merges_; }
  /// The token that a whole piece is without merges, as ignore_merges wants it; kNoId where there is none.
  Id whole(std::string_view piece) const;
  /// A character, as pieces have it, before which no merge reaches unless it follows itself. Empty where there is none.
  const std::string& separator() const { return separator_; }

 private:
  void read_merges(const Field& merges);
  void find_separator();

  Vocabulary vocabulary_;
  bool takes_bytes_, ignores_merges_, fuses_unknown_;
  std::string prefix_, suffix_;  // continuing_subword_prefix, end_of_word_suffix
  Id unknown_ = kNoId;
  std::optional<ByteTokens> byte_tokens_;         // with byte_fallback
  std::array<Id, 256> bytes_;                     // with takes_bytes
  std::unordered_map<std::string, Id> by_bytes_;  // with takes_bytes and ignore_merges
  MergeTable merges_;
  Ids merged_;  // into what pairs are merged
  std::string separator_;
};

}  // namespace capstan::tokenizer
