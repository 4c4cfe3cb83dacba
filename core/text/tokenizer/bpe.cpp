#include "core/text/tokenizer/bpe.hpp"

#include <algorithm>
#include <bitset>
#include <queue>
#include <utility>

#include "core/text/tokenizer/byte_characters.hpp"
#include "core/text/tokenizer/piece_cache.hpp"
#include "core/text/tokenizer/unicode.hpp"

namespace capstan::tokenizer {
namespace {

constexpr const char* kMetaspaceMark = "\u2581";

/// Merges the symbols of a word.
class Merger {
 public:
  explicit Merger(const MergeTable& merges) : merges_(merges) {}

  void merge(Ids& symbols) {
    // Looking at all pairs again and again is the faster way for few.
    constexpr std::size_t kFew = 48;
    symbols.size() < kFew ? merge_few(symbols) : merge_many(symbols);
  }

 private:
  static constexpr std::uint32_t kNoRank = ~std::uint32_t{0};
  using Merge = MergeTable::Merge;

  void look_up(const Ids& symbols, std::size_t left) {
    const Merge* found = left + 1 < symbols.size() ? merges_.find(symbols[left], symbols[left + 1]) : nullptr;
    ranks_[left] = found ? found->rank : kNoRank;
    into_[left] = found ? found->into : kNoId;
  }

  void merge_few(Ids& symbols) {
    ranks_.resize(symbols.size());
    into_.resize(symbols.size());
    for (std::size_t i = 0; i < symbols.size(); ++i) look_up(symbols, i);
    for (;;) {
      const auto least = std::min_element(ranks_.begin(), ranks_.end());
      if (least == ranks_.end() || *least == kNoRank) return;
      const auto at = static_cast<std::size_t>(least - ranks_.begin());
      const auto behind = static_cast<std::ptrdiff_t>(at + 1);
      symbols[at] = into_[at];
      symbols.erase(symbols.begin() + behind);
      ranks_.erase(ranks_.begin() + behind);
      into_.erase(into_.begin() + behind);
      if (at > 0) look_up(symbols, at - 1);
      look_up(symbols, at);
    }
  }

  /// A pair as it was when it was queued.
  struct Candidate {
    std::uint32_t rank;
    std::size_t at;
    Id left, right, into;
    bool operator<(const Candidate& other) const { return rank != other.rank ? rank > other.rank : at > other.at; }
  };

  void queue(const Ids& symbols, std::size_t at) {
    if (next_[at] == symbols.size()) return;
    const Id left = symbols[at], right = symbols[next_[at]];
    if (const Merge* found = merges_.find(left, right)) queue_.push({found->rank, at, left, right, found->into});
  }

  void merge_many(Ids& symbols) {
    const std::size_t end = symbols.size();
    next_.resize(end);
    before_.resize(end);
    for (std::size_t i = 0; i < end; ++i) {
      next_[i] = i + 1;
      before_[i] = i == 0 ? end : i - 1;
    }
    for (std::size_t i = 0; i < end; ++i) queue(symbols, i);
    while (!queue_.empty()) {
      const Candidate pair = queue_.top();
      queue_.pop();
      const std::size_t right = next_[pair.at];
      if (symbols[pair.at] != pair.left || right == end || symbols[right] != pair.right) continue;
      symbols[pair.at] = pair.into;
      symbols[right] = kNoId;
      next_[pair.at] = next_[right];
      if (next_[right] < end) before_[next_[right]] = pair.at;
      if (before_[pair.at] < end) queue(symbols, before_[pair.at]);
      queue(symbols, pair.at);
    }
    symbols.erase(std::remove(symbols.begin(), symbols.end(), kNoId), symbols.end());
  }

  const MergeTable& merges_;
  std::vector<std::uint32_t> ranks_;
  Ids into_;
  std::vector<std::size_t> next_, before_;
  std::priority_queue<Candidate> queue_;
};

class BpeEncoder final : public PieceEncoder {
 public:
  explicit BpeEncoder(const Bpe& model) : model_(model), merger_(model.merges()) {}

  void encode(std::string_view piece, Ids& ids) override {
    if (const Id whole = model_.whole(piece); whole != kNoId) return ids.push_back(whole);
    const std::string& separator = model_.separator();
    if (separator.empty()) return encode_word(piece, ids);
    for (std::size_t begin = 0; begin < piece.size();) {
      std::size_t end = begin;
      while (piece.substr(end).starts_with(separator)) end += separator.size();
      end = std::min(piece.find(separator, end), piece.size());
      encode_word(piece.substr(begin, end - begin), ids);
      begin = end;
    }
  }

 private:
  void encode_word(std::string_view word, Ids& ids) {
    cache_.encode(word, ids, [&] {
      symbols_.clear();
      model_.append_symbols(word, symbols_);
      merger_.merge(symbols_);
      ids.insert(ids.end(), symbols_.begin(), symbols_.end());
    });
  }

  const Bpe& model_;
  Merger merger_;
  PieceCache cache_;
  Ids symbols_;
};

/// The two tokens of a merge: ["a", "b"], or "a b" as older files have it.
std::pair<std::string_view, std::string_view> pair_of(const Field& merges, std::size_t index) {
  const Json& json = merges.array()[index];
  if (json.is_array() && json.size() == 2 && json.as_array()[0].is_string() && json.as_array()[1].is_string()) {
    return {json.as_array()[0].as_string(), json.as_array()[1].as_string()};
  }
  const std::string_view text = json.is_string() ? json.as_string() : std::string_view();
  const std::size_t space = text.find(' ');
  if (space == std::string_view::npos || space != text.rfind(' ')) {
    merges.item(index).fail("must be two tokens, as [\"a\", \"b\"] or \"a b\".");
  }
  return {text.substr(0, space), text.substr(space + 1)};
}

}  // namespace

Bpe::Bpe(const Field& section, bool takes_bytes)
    : vocabulary_(Vocabulary::of_object(section.at("vocab"))),
      takes_bytes_(takes_bytes),
      ignores_merges_(section.flag("ignore_merges", false)),
      fuses_unknown_(section.flag("fuse_unk", false)),
      prefix_(section.text("continuing_subword_prefix", "")),
      suffix_(section.text("end_of_word_suffix", "")),
      merges_(section.at("merges").array().size()) {
  if (const auto dropout = section.find("dropout")) {
    if (!dropout->json().is_number() || dropout->json().as_number() != 0) {
      dropout->fail("leaves out merges at random, which Capstan does not support. Set it to null.");
    }
  }
  if (const auto unknown = section.find("unk_token")) {
    unknown_ = vocabulary_.find(unknown->text());
    if (unknown_ == kNoId) unknown->fail("'" + unknown->text() + "' is not in model.vocab.");
  }
  if (section.flag("byte_fallback", false)) byte_tokens_.emplace(vocabulary_);
  for (unsigned byte = 0; byte < bytes_.size(); ++byte) {
    bytes_[byte] = vocabulary_.find(character_of_byte(static_cast<unsigned char>(byte)));
  }
  if (takes_bytes_ && ignores_merges_) {
    vocabulary_.each([&](const std::string& text, Id id) {
      if (const auto bytes = characters_to_bytes(text)) by_bytes_.emplace(*bytes, id);
    });
  }
  read_merges(section.at("merges"));
  find_separator();
}

void Bpe::read_merges(const Field& merges) {
  const std::size_t count = merges.array().size();
  std::string joined;
  for (std::size_t i = 0; i < count; ++i) {
    const auto [left, right] = pair_of(merges, i);
    joined = left;
    joined += right.starts_with(prefix_) ? right.substr(prefix_.size()) : right;
    const Id ids[] = {vocabulary_.find(left), vocabulary_.find(right), vocabulary_.find(joined)};
    const std::string_view texts[] = {left, right, joined};
    for (int part = 0; part < 3; ++part) {
      if (ids[part] == kNoId) merges.item(i).fail("'" + std::string(texts[part]) + "' is not in model.vocab.");
    }
    merges_.add(ids[0], ids[1], static_cast<std::uint32_t>(i), ids[2]);
    merged_.push_back(ids[2]);
  }
}

void Bpe::find_separator() {
  // A word's ends, a whole piece and a run of unknown characters depend on what stands before them.
  if (!prefix_.empty() || !suffix_.empty() || ignores_merges_) return;
  const std::string space(character_of_byte(' '));
  for (const std::string& mark : {std::string(kMetaspaceMark), space}) {
    if (vocabulary_.find(mark) == kNoId || (takes_bytes_ && mark != space)) continue;
    const bool stays_in_front = std::all_of(merged_.begin(), merged_.end(), [&](Id id) {
      std::string_view text = *vocabulary_.text(id);
      while (text.starts_with(mark)) text.remove_prefix(mark.size());
      return text.find(mark) == std::string_view::npos;
    });
    if (stays_in_front) {
      separator_ = takes_bytes_ ? " " : mark;
      return;
    }
  }
}

Id Bpe::whole(std::string_view piece) const {
  if (!ignores_merges_) return kNoId;
  if (!takes_bytes_) return vocabulary_.find(piece);
  const auto found = by_bytes_.find(std::string(piece));
  return found == by_bytes_.end() ? kNoId : found->second;
}

void Bpe::append_symbols(std::string_view piece, Ids& symbols) const {
  if (takes_bytes_) {
    for (const char byte : piece) symbols.push_back(bytes_[static_cast<unsigned char>(byte)]);
    return;
  }
  std::string symbol;
  bool unknown_waits = false;  // an unknown character that the next may join
  for (std::size_t at = 0; at < piece.size();) {
    const std::size_t end = at + length_of(piece[at]);
    symbol = at > 0 ? prefix_ : "";
    symbol += piece.substr(at, end - at);
    if (end == piece.size()) symbol += suffix_;
    at = end;
    const Id id = vocabulary_.find(symbol);
    if (id != kNoId) {
      if (unknown_waits) symbols.push_back(unknown_);
      unknown_waits = false;
      symbols.push_back(id);
    } else if (!(byte_tokens_ && byte_tokens_->append(symbol, symbols)) && unknown_ != kNoId) {
      if (unknown_waits && !fuses_unknown_) symbols.push_back(unknown_);
      unknown_waits = true;
    }
  }
  if (unknown_waits) symbols.push_back(unknown_);
}

std::unique_ptr<PieceEncoder> Bpe::encoder() const { return std::make_unique<BpeEncoder>(*this); }

bool Bpe::can_take_bytes(const Field& section) {
  if (!section.text("continuing_subword_prefix", "").empty() || !section.text("end_of_word_suffix", "").empty()) {
    return false;
  }
  std::bitset<256> found;
  for (const auto& [text, id] : section.at("vocab").object()) {
    if (text.size() > 2 || first_invalid_byte(text)) continue;
    const auto bytes = characters_to_bytes(text);
    if (bytes && bytes->size() == 1) found.set(static_cast<unsigned char>(bytes->front()));
  }
  return found.all();
}

}  // namespace capstan::tokenizer
