#pragma once

#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "core/text/tokenizer/byte_trie.hpp"
#include "core/text/tokenizer/model.hpp"

namespace capstan::tokenizer {

/// The unigram language model (Kudo 2018): of all ways to cut a piece into tokens the one with the greatest sum of
/// scores, found by Viterbi's algorithm. A character without a token is unknown, and scores 10 below the least score.
class Unigram final : public Model {
 public:
  explicit Unigram(const Field& section);

  const Vocabulary& vocabulary() const override { return vocabulary_; }
  std::unique_ptr<PieceEncoder> encoder() const override;

 private:
  friend class UnigramEncoder;

  explicit Unigram(const Field& section, const Field& vocab);

  Vocabulary vocabulary_;
  std::vector<double> scores_;  // by id
  double unknown_score_;
  Id unknown_ = kNoId;
  std::optional<ByteTokens> byte_tokens_;  // with byte_fallback
  ByteTrie trie_;
};

}  // namespace capstan::tokenizer
