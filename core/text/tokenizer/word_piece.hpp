#pragma once

#include <memory>
#include <string>

#include "core/text/tokenizer/model.hpp"

namespace capstan::tokenizer {

/// WordPiece (Schuster and Nakajima 2012; BERT's form): from the front of a piece the longest token, again and again;
/// tokens behind the first begin with a prefix. A piece that cannot be cut so, or is too long, is unknown.
class WordPiece final : public Model {
 public:
  explicit WordPiece(const Field& section);

  const Vocabulary& vocabulary() const override { return vocabulary_; }
  std::unique_ptr<PieceEncoder> encoder() const override;

 private:
  friend class WordPieceEncoder;

  Vocabulary vocabulary_;
  Id unknown_;
  std::string prefix_;
  std::size_t longest_;  // characters of a piece
};

}  // namespace capstan::tokenizer
