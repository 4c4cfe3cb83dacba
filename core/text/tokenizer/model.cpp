#include "core/text/tokenizer/model.hpp"

#include <string>

#include "core/text/tokenizer/bpe.hpp"
#include "core/text/tokenizer/unigram.hpp"
#include "core/text/tokenizer/word_level.hpp"
#include "core/text/tokenizer/word_piece.hpp"

namespace capstan::tokenizer {
namespace {

/// Files of before 2020 have no types.
std::string model_type(const Field& section) {
  if (section.find("type")) return section.type("a model", {"BPE", "Unigram", "WordPiece", "WordLevel"});
  if (section.find("merges")) return "BPE";
  if (section.at("vocab").json().is_array()) return "Unigram";
  // Both of the others have a vocabulary and a token for unknown pieces; WordPiece tells how long pieces may be.
  return section.find("max_input_chars_per_word") || section.find("continuing_subword_prefix") ? "WordPiece"
                                                                                               : "WordLevel";
}

}  // namespace

std::unique_ptr<Model> make_model(const Field& section, bool takes_bytes) {
  const std::string type = model_type(section);
  if (type == "BPE") return std::make_unique<Bpe>(section, takes_bytes);
  if (type == "Unigram") return std::make_unique<Unigram>(section);
  if (type == "WordLevel") return std::make_unique<WordLevel>(section);
  return std::make_unique<WordPiece>(section);
}

bool can_take_bytes(const Field& section) { return model_type(section) == "BPE" && Bpe::can_take_bytes(section); }

}  // namespace capstan::tokenizer
