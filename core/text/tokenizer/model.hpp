#pragma once

#include <memory>
#include <string_view>

#include "core/text/tokenizer/field.hpp"
#include "core/text/tokenizer/vocabulary.hpp"

namespace capstan::tokenizer {

/// Tokenizes pieces. Has working memory of its own, so that one thread uses it; its model outlives it.
class PieceEncoder {
 public:
  virtual ~PieceEncoder() = default;
  /// Appends the tokens of a piece, which is not empty. Throws RuntimeFault where a character has no token and the
  /// model none for unknown ones.
  virtual void encode(std::string_view piece, Ids& ids) = 0;
};

/// The section "model" of tokenizer.json. Several threads may use one.
class Model {
 public:
  virtual ~Model() = default;
  virtual const Vocabulary& vocabulary() const = 0;
  virtual std::unique_ptr<PieceEncoder> encoder() const = 0;
};

/// The model of a section: BPE, Unigram, WordPiece or WordLevel. `takes_bytes`: pieces are bytes for whose characters
/// the vocabulary has tokens (see byte_characters.hpp). Throws RuntimeFault with the place of what is wrong.
std::unique_ptr<Model> make_model(const Field& section, bool takes_bytes);
/// Whether the model of a section can take bytes: BPE with a token for each.
bool can_take_bytes(const Field& section);

}  // namespace capstan::tokenizer
