#include "core/text/tokenizer/word_level.hpp"

#include "core/errors.hpp"

namespace capstan::tokenizer {

class WordLevelEncoder final : public PieceEncoder {
 public:
  explicit WordLevelEncoder(const WordLevel& model) : model_(model) {}

  void encode(std::string_view piece, Ids& ids) override {
    const Id id = model_.vocabulary_.find(piece);
    if (id == kNoId && model_.unknown_ == kNoId) {
      throw RuntimeFault("'" + std::string(piece) + "' has no token, and the token for unknown pieces, unk_token '" +
                         model_.unknown_text_ + "', is not in model.vocab.");
    }
    ids.push_back(id == kNoId ? model_.unknown_ : id);
  }

 private:
  const WordLevel& model_;
};

WordLevel::WordLevel(const Field& section)
    : vocabulary_(Vocabulary::of_object(section.at("vocab"))),
      unknown_text_(section.text("unk_token", "<unk>")),
      unknown_(vocabulary_.find(unknown_text_)) {}

std::unique_ptr<PieceEncoder> WordLevel::encoder() const { return std::make_unique<WordLevelEncoder>(*this); }

}  // namespace capstan::tokenizer
