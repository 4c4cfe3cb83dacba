#include "core/text/tokenizer/unigram.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "core/errors.hpp"
#include "core/text/tokenizer/piece_cache.hpp"
#include "core/text/tokenizer/unicode.hpp"

namespace capstan::tokenizer {
namespace {

constexpr double kUnknownPenalty = 10;

std::vector<std::string> texts_of_pairs(const Field& vocab) {
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < vocab.array().size(); ++i) {
    const Json& pair = vocab.array()[i];
    const bool is_pair = pair.is_array() && pair.size() == 2 && pair.as_array()[0].is_string() &&
                         pair.as_array()[1].is_number() && std::isfinite(pair.as_array()[1].as_number());
    if (!is_pair) vocab.item(i).fail("must be a token and its score, as [\"a\", -3.5].");
    texts.push_back(pair.as_array()[0].as_string());
  }
  if (texts.empty()) vocab.fail("has no tokens.");
  return texts;
}

std::vector<ByteTrie::Entry> entries_of(const Vocabulary& vocabulary) {
  std::vector<ByteTrie::Entry> entries;
  vocabulary.each([&](const std::string& text, Id /*id*/) {
    // Of equal texts all have the id that the vocabulary finds.
    if (!text.empty()) entries.emplace_back(text, vocabulary.find(text));
  });
  return entries;
}

}  // namespace

class UnigramEncoder final : public PieceEncoder {
 public:
  explicit UnigramEncoder(const Unigram& model) : model_(model) {}

  void encode(std::string_view piece, Ids& ids) override {
    cache_.encode(piece, ids, [&] {
      find_best_path(piece);
      append_path(piece, ids);
    });
  }

 private:
  /// The best way to a byte offset.
  struct Node {
    double score = 0;
    std::size_t from = kNowhere;
    Id id = kNoId;
  };
  static constexpr std::size_t kNowhere = ~std::size_t{0};

  void find_best_path(std::string_view piece) {
    path_.assign(piece.size() + 1, {});
    for (std::size_t at = 0; at < piece.size();) {
      const double score = path_[at].score;
      const std::size_t length = length_of(piece[at]);
      bool has_character = false;
      const auto offer = [&](std::size_t size, Id id, double sum) {
        Node& node = path_[at + size];
        if (node.from == kNowhere || sum > node.score) node = {sum, at, id};
      };
      model_.trie_.each_prefix(piece, at, [&](std::size_t size, Id id) {
        offer(size, id, score + model_.scores_[static_cast<std::size_t>(id)]);
        has_character = has_character || size == length;
      });
      if (!has_character) {
        offer(length, model_.unknown_, score + model_.unknown_score_);
      }
      at += length;
    }
  }

  void append_path(std::string_view piece, Ids& ids) {
    steps_.clear();
    for (std::size_t end = piece.size(); end > 0; end = path_[end].from) steps_.push_back(end);
    std::size_t begin = 0;
    for (std::size_t i = steps_.size(); i-- > 0; begin = steps_[i]) {
      if (path_[steps_[i]].id != model_.unknown_) {
        ids.push_back(path_[steps_[i]].id);
        continue;
      }
      // Unknown characters that follow each other are one token.
      while (i > 0 && path_[steps_[i - 1]].id == model_.unknown_) --i;
      append_unknown(piece.substr(begin, steps_[i] - begin), ids);
    }
  }

  void append_unknown(std::string_view text, Ids& ids) {
    if (const Id id = model_.vocabulary_.find(text); id != kNoId) return ids.push_back(id);
    if (model_.byte_tokens_ && model_.byte_tokens_->append(text, ids)) return;
    if (model_.unknown_ == kNoId) {
      throw RuntimeFault("'" + std::string(text) +
                         "' has no token, and the tokenizer has none for unknown characters: model.unk_id is missing.");
    }
    ids.push_back(model_.unknown_);
  }

  const Unigram& model_;
  PieceCache cache_;
  std::vector<Node> path_;
  std::vector<std::size_t> steps_;  // ends of the tokens, the last first
};

Unigram::Unigram(const Field& section) : Unigram(section, section.at("vocab")) {}

Unigram::Unigram(const Field& section, const Field& vocab)
    : vocabulary_(Vocabulary::of_list(texts_of_pairs(vocab))), trie_(entries_of(vocabulary_)) {
  for (const Json& pair : vocab.array()) scores_.push_back(pair.as_array()[1].as_number());
  unknown_score_ = *std::min_element(scores_.begin(), scores_.end()) - kUnknownPenalty;
  if (const auto unknown = section.find("unk_id")) {
    unknown_ = unknown->id();
    if (unknown_ >= vocabulary_.end()) {
      unknown->fail("is " + std::to_string(unknown_) + ", and model.vocab has " + std::to_string(vocabulary_.end()) +
                    " tokens.");
    }
  }
  if (section.flag("byte_fallback", false)) byte_tokens_.emplace(vocabulary_);
}

std::unique_ptr<PieceEncoder> Unigram::encoder() const { return std::make_unique<UnigramEncoder>(*this); }

}  // namespace capstan::tokenizer
