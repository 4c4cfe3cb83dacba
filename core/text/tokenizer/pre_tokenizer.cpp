#include "core/text/tokenizer/pre_tokenizer.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/text/tokenizer/byte_characters.hpp"
#include "core/text/tokenizer/replacement.hpp"
#include "core/text/tokenizer/split_behavior.hpp"
#include "core/text/tokenizer/unicode.hpp"
#include "core/text/word_patterns.hpp"

namespace capstan::tokenizer {
namespace {

constexpr std::size_t kBlockBytes = 64 << 10;

class PreTokenizerSequence final : public PreTokenizer {
 public:
  PreTokenizerSequence(const Field& section, bool leave_bytes) {
    const std::vector<Field> all = section.at("pretokenizers").items();
    // A pre-tokenizer behind ByteLevel splits characters, not bytes.
    for (const Field& one : all) all_.push_back(make_pre_tokenizer(one, leave_bytes && &one == &all.back()));
  }
  void split(const Pieces& in, Pieces& out, PieceTexts& texts) const override {
    Pieces now = in, next;
    for (const auto& one : all_) {
      next.clear();
      one->split(now, next, texts);
      std::swap(now, next);
    }
    out.insert(out.end(), now.begin(), now.end());
  }
  bool leaves_bytes() const override { return !all_.empty() && all_.back()->leaves_bytes(); }
  bool keeps_text() const override {
    return std::all_of(all_.begin(), all_.end(), [](const auto& one) { return one->keeps_text(); });
  }

 private:
  std::vector<std::unique_ptr<PreTokenizer>> all_;
};

class ByteLevel final : public PreTokenizer {
 public:
  ByteLevel(const Field& section, bool leaves_bytes)
      : prefixes_(section.flag("add_prefix_space", true)), leaves_bytes_(leaves_bytes) {
    if (section.flag("use_regex", true)) regex_.emplace(word_patterns::kGpt2);
  }
  void split(const Pieces& in, Pieces& out, PieceTexts& texts) const override {
    std::vector<Range> matches;
    for (Piece piece : in) {
      if (prefixes_ && !piece.text.starts_with(' ')) piece.text = texts.keep(" ", piece.text);
      matches.clear();
      if (regex_) regex_->find(piece.text, matches);
      const std::size_t first = out.size();
      split_piece(piece, matches, false, SplitBehavior::kIsolated, out);
      if (leaves_bytes_) continue;
      for (std::size_t i = first; i < out.size(); ++i) out[i].text = texts.keep(bytes_to_characters(out[i].text));
    }
  }
  bool leaves_bytes() const override { return leaves_bytes_; }
  bool keeps_text() const override { return !prefixes_; }

 private:
  bool prefixes_, leaves_bytes_;
  std::optional<Regex> regex_;
};

class Splitting final : public PreTokenizer {
 public:
  explicit Splitting(const Field& section)
      : pattern_(section), behavior_(split_behavior(section.at("behavior"))), inverts_(section.flag("invert", false)) {}
  void split(const Pieces& in, Pieces& out, PieceTexts& /*texts*/) const override {
    std::vector<Range> matches;
    for (const Piece& piece : in) {
      matches.clear();
      pattern_.find(piece.text, matches);
      split_piece(piece, matches, inverts_, behavior_, out);
    }
  }
  bool keeps_text() const override { return behavior_ != SplitBehavior::kRemoved; }

 private:
  Pattern pattern_;
  SplitBehavior behavior_;
  bool inverts_;
};

/// Splits at characters of a kind.
class CharacterSplitting final : public PreTokenizer {
 public:
  using Kind = bool (*)(char32_t);
  CharacterSplitting(Kind kind, SplitBehavior behavior) : kind_(kind), behavior_(behavior) {}
  void split(const Pieces& in, Pieces& out, PieceTexts& /*texts*/) const override {
    std::vector<Range> matches;
    for (const Piece& piece : in) {
      matches.clear();
      for (std::size_t at = 0; at < piece.text.size();) {
        const std::size_t end = at + length_of(piece.text[at]);
        if (kind_(character_at(piece.text, at))) matches.push_back({at, end});
        at = end;
      }
      split_piece(piece, matches, false, behavior_, out);
    }
  }
  bool keeps_text() const override { return behavior_ != SplitBehavior::kRemoved; }

 private:
  Kind kind_;
  SplitBehavior behavior_;
};

/// Splits at one character, which is left out.
class DelimiterSplitting final : public PreTokenizer {
 public:
  explicit DelimiterSplitting(const Field& section) : delimiter_(section.at("delimiter").text()) {
    if (delimiter_.empty()) section.at("delimiter").fail("must be a character, and is empty.");
  }
  void split(const Pieces& in, Pieces& out, PieceTexts& /*texts*/) const override {
    std::vector<Range> matches;
    for (const Piece& piece : in) {
      matches.clear();
      for (std::size_t at = piece.text.find(delimiter_); at != std::string_view::npos;
           at = piece.text.find(delimiter_, at + delimiter_.size())) {
        matches.push_back({at, at + delimiter_.size()});
      }
      split_piece(piece, matches, false, SplitBehavior::kRemoved, out);
    }
  }

 private:
  std::string delimiter_;
};

/// Words, and runs of what is neither a word nor white space.
class WordsAndSymbols final : public PreTokenizer {
 public:
  void split(const Pieces& in, Pieces& out, PieceTexts& /*texts*/) const override {
    for (const Piece& piece : in) {
      Kind run = kSpace;
      std::size_t begin = 0, at = 0;
      const auto end_run = [&] {
        if (run != kSpace) out.push_back({piece.text.substr(begin, at - begin), piece.at_front && begin == 0});
        begin = at;
      };
      for (; at < piece.text.size(); at += length_of(piece.text[at])) {
        const char32_t character = character_at(piece.text, at);
        const Kind kind = is_word(character) ? kWord : is_white_space(character) ? kSpace : kSymbol;
        if (kind != run) end_run();
        run = kind;
      }
      end_run();
    }
  }

 private:
  enum Kind { kSpace, kWord, kSymbol };
};

/// SentencePiece's way with spaces: a character stands for each, and one is put before a text.
class Metaspace final : public PreTokenizer {
 public:
  explicit Metaspace(const Field& section)
      : mark_(section.text("replacement", "\u2581")), splits_(section.flag("split", true)) {
    if (mark_.empty() || length_of(mark_[0]) != mark_.size()) section.at("replacement").fail("must be one character.");
    const std::string otherwise = section.flag("add_prefix_space", true) ? "always" : "never";
    const std::string scheme = section.text("prepend_scheme", otherwise);
    if (scheme != "always" && scheme != "first" && scheme != "never") {
      section.at("prepend_scheme").fail("'" + scheme + "' is not a scheme: always, first, never.");
    }
    always_ = scheme == "always";
    first_ = scheme == "first";
  }
  void split(const Pieces& in, Pieces& out, PieceTexts& texts) const override {
    std::string marked;
    std::vector<Range> marks;
    for (const Piece& piece : in) {
      marked.clear();
      if ((always_ || (first_ && piece.at_front)) && piece.text[0] != ' ' && !piece.text.starts_with(mark_)) {
        marked = mark_;
      }
      for (const char byte : piece.text) {
        if (byte == ' ') {
          marked += mark_;
        } else {
          marked += byte;
        }
      }
      const Piece made{texts.keep(marked), piece.at_front};
      marks.clear();
      for (std::size_t at = splits_ ? made.text.find(mark_) : std::string_view::npos; at != std::string_view::npos;
           at = made.text.find(mark_, at + mark_.size())) {
        marks.push_back({at, at + mark_.size()});
      }
      split_piece(made, marks, false, SplitBehavior::kMergedWithNext, out);
    }
  }

 private:
  std::string mark_;
  bool splits_, always_ = false, first_ = false;
};

/// BERT's words: white space is left out, each punctuation character stands alone.
class BertWords final : public PreTokenizer {
 public:
  void split(const Pieces& in, Pieces& out, PieceTexts& texts) const override {
    Pieces words;
    CharacterSplitting(is_white_space, SplitBehavior::kRemoved).split(in, words, texts);
    CharacterSplitting(is_punctuation, SplitBehavior::kIsolated).split(words, out, texts);
  }
};

}  // namespace

std::string_view PieceTexts::keep(std::string_view first, std::string_view second) {
  const std::size_t size = first.size() + second.size();
  if (size > left_) {
    left_ = std::max(size, kBlockBytes);
    blocks_.push_back(std::make_unique<char[]>(left_));
    at_ = blocks_.back().get();
  }
  char* begin = at_;
  std::memcpy(begin, first.data(), first.size());
  if (!second.empty()) std::memcpy(begin + first.size(), second.data(), second.size());
  at_ += size;
  left_ -= size;
  return {begin, size};
}

void PieceTexts::clear() {
  blocks_.clear();
  left_ = 0;
}

std::unique_ptr<PreTokenizer> make_pre_tokenizer(const Field& section, bool leave_bytes) {
  const std::string& type =
      section.type("a pre-tokenizer", {"Sequence", "ByteLevel", "Split", "Digits", "Metaspace", "Whitespace",
                                       "WhitespaceSplit", "Punctuation", "BertPreTokenizer", "CharDelimiterSplit"});
  if (type == "Sequence") return std::make_unique<PreTokenizerSequence>(section, leave_bytes);
  if (type == "ByteLevel") return std::make_unique<ByteLevel>(section, leave_bytes);
  if (type == "Split") return std::make_unique<Splitting>(section);
  if (type == "Metaspace") return std::make_unique<Metaspace>(section);
  if (type == "Whitespace") return std::make_unique<WordsAndSymbols>();
  if (type == "BertPreTokenizer") return std::make_unique<BertWords>();
  if (type == "CharDelimiterSplit") return std::make_unique<DelimiterSplitting>(section);
  if (type == "WhitespaceSplit") return std::make_unique<CharacterSplitting>(is_white_space, SplitBehavior::kRemoved);
  if (type == "Digits") {
    const bool each = section.flag("individual_digits", false);
    return std::make_unique<CharacterSplitting>(is_numeric,
                                                each ? SplitBehavior::kIsolated : SplitBehavior::kContiguous);
  }
  const auto behavior = section.find("behavior");
  return std::make_unique<CharacterSplitting>(is_punctuation,
                                              behavior ? split_behavior(*behavior) : SplitBehavior::kIsolated);
}

}  // namespace capstan::tokenizer
