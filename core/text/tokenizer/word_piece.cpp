#include "core/text/tokenizer/word_piece.hpp"

#include "core/text/tokenizer/piece_cache.hpp"
#include "core/text/tokenizer/unicode.hpp"

namespace capstan::tokenizer {

class WordPieceEncoder final : public PieceEncoder {
 public:
  explicit WordPieceEncoder(const WordPiece& model) : model_(model) {}

  void encode(std::string_view piece, Ids& ids) override {
    cache_.encode(piece, ids, [&] {
      const std::size_t first = ids.size();
      if (is_too_long(piece) || !append_tokens(piece, ids)) {
        ids.resize(first);
        ids.push_back(model_.unknown_);
      }
    });
  }

 private:
  bool is_too_long(std::string_view piece) const {
    std::size_t characters = 0;
    for (const char byte : piece) characters += (static_cast<unsigned char>(byte) & 0xC0) != 0x80;
    return characters > model_.longest_;
  }

  bool append_tokens(std::string_view piece, Ids& ids) {
    for (std::size_t begin = 0; begin < piece.size();) {
      token_ = begin > 0 ? model_.prefix_ : "";
      const std::size_t prefix = token_.size();
      token_ += piece.substr(begin);
      Id id = model_.vocabulary_.find(token_);
      while (id == kNoId) {
        token_.resize(last_character(token_));
        if (token_.size() <= prefix) return false;
        id = model_.vocabulary_.find(token_);
      }
      ids.push_back(id);
      begin += token_.size() - prefix;
    }
    return true;
  }

  const WordPiece& model_;
  PieceCache cache_;
  std::string token_;
};

WordPiece::WordPiece(const Field& section)
    : vocabulary_(Vocabulary::of_object(section.at("vocab"))),
      unknown_(vocabulary_.find(section.text("unk_token", "[UNK]"))),
      prefix_(section.text("continuing_subword_prefix", "##")) {
  if (unknown_ == kNoId) {
    section.fail("the token for unknown pieces, unk_token '" + section.text("unk_token", "[UNK]") +
                 "', is not in model.vocab.");
  }
  const auto longest = section.find("max_input_chars_per_word");
  if (longest && longest->integer() < 0) longest->fail("must not be negative.");
  longest_ = longest ? static_cast<std::size_t>(longest->integer()) : 100;
}

std::unique_ptr<PieceEncoder> WordPiece::encoder() const { return std::make_unique<WordPieceEncoder>(*this); }

}  // namespace capstan::tokenizer
