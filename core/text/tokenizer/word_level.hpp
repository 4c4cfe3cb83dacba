#pragma once

#include <memory>
#include <string>

#include "core/text/tokenizer/model.hpp"

namespace capstan::tokenizer {

/// A token for each piece that the vocabulary has, one for all others.
class WordLevel final : public Model {
 public:
  explicit WordLevel(const Field& section);

  const Vocabulary& vocabulary() const override { return vocabulary_; }
  std::unique_ptr<PieceEncoder> encoder() const override;

 private:
  friend class WordLevelEncoder;

  Vocabulary vocabulary_;
  std::string unknown_text_;
  Id unknown_;  // kNoId: a piece without a token is an error
};

}  // namespace capstan::tokenizer
