#include "core/text/tokenizer/decoder.hpp"

#include <cctype>
#include <charconv>
#include <optional>
#include <utility>

#include "core/text/tokenizer/byte_characters.hpp"
#include "core/text/tokenizer/replacement.hpp"
#include "core/text/tokenizer/unicode.hpp"

namespace capstan::tokenizer {
namespace {

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  if (from.empty()) return;
  for (std::size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
}

/// Rewrites each token by itself.
class EachToken final : public DecodingStep {
 public:
  using Rewrite = std::function<void(std::string& token, bool first)>;
  explicit EachToken(Rewrite rewrite) : rewrite_(std::move(rewrite)) {}
  void push(std::string token, const Next& next) override {
    rewrite_(token, first_);
    first_ = false;
    next(std::move(token));
  }

 private:
  Rewrite rewrite_;
  bool first_ = true;
};

/// Joins all tokens to one.
class Joining final : public DecodingStep {
 public:
  void push(std::string token, const Next& /*next*/) override { all_ += token; }
  void finish(const Next& next) override { next(std::move(all_)); }

 private:
  std::string all_;
};

/// Characters of bytes to bytes. A character that is not whole yet is held back.
class BytesOfCharacters final : public DecodingStep {
 public:
  void push(std::string token, const Next& next) override {
    held_ += characters_to_bytes(token).value_or(token);
    const std::string rest = held_.substr(held_.size() - unfinished_bytes(held_));
    held_.resize(held_.size() - rest.size());
    if (!held_.empty()) next(replace_invalid(held_));
    held_ = rest;
  }
  void finish(const Next& next) override {
    if (!held_.empty()) next(replace_invalid(held_));
  }

 private:
  std::string held_;
};

/// The byte that "<0x41>" stands for.
std::optional<char> byte_of_token(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || !token.ends_with('>')) return std::nullopt;
  unsigned value = 0;
  const auto [end, error] = std::from_chars(token.data() + 3, token.data() + 5, value, 16);
  if (error != std::errc() || end != token.data() + 5) return std::nullopt;
  return static_cast<char>(value);
}

/// Runs of tokens for bytes to a text. A run that is not UTF-8 is U+FFFD for each byte, so its end is waited for.
class BytesOfRuns final : public DecodingStep {
 public:
  void push(std::string token, const Next& next) override {
    if (const auto byte = byte_of_token(token)) {
      run_ += *byte;
      return;
    }
    finish(next);
    next(std::move(token));
  }
  void finish(const Next& next) override {
    if (run_.empty()) return;
    std::string text = run_;
    if (first_invalid_byte(run_)) {
      text.clear();
      for (std::size_t i = 0; i < run_.size(); ++i) text += "\xEF\xBF\xBD";
    }
    run_.clear();
    next(std::move(text));
  }

 private:
  std::string run_;
};

/// How many characters of a kind each token loses at its ends.
struct Margins {
  explicit Margins(const Field& section)
      : character(section.at("content").text()), front(count(section, "start")), end(count(section, "stop")) {
    if (character.empty()) section.at("content").fail("must be a character, and is empty.");
  }

  static std::size_t count(const Field& section, const char* key) {
    const Field field = section.at(key);
    if (field.integer() < 0) field.fail("must not be negative.");
    return static_cast<std::size_t>(field.integer());
  }
  /// Removes at most `most` of the character from the front. Returns how many.
  std::size_t strip_front(std::string& text, std::size_t most) const {
    std::size_t count = 0;
    while (count < most && std::string_view(text).substr(count * character.size()).starts_with(character)) ++count;
    text.erase(0, count * character.size());
    return count;
  }
  /// How many of the character a text ends with, `end` at most.
  std::size_t at_end(std::string_view text) const {
    std::size_t count = 0;
    for (; count < end && text.ends_with(character); ++count) text.remove_suffix(character.size());
    return count;
  }

  std::string character;
  std::size_t front, end;
};

/// Strips the ends of a token that comes in parts.
class StrippingParts final : public DecodingStep {
 public:
  explicit StrippingParts(const Margins& margins) : margins_(margins), left_(margins.front) {}
  void push(std::string token, const Next& next) override {
    if (left_ > 0) {
      left_ -= margins_.strip_front(token, left_);
      if (!token.empty()) left_ = 0;
    }
    held_ += token;
    const std::size_t kept = held_.size() - margins_.at_end(held_) * margins_.character.size();
    if (kept > 0) next(held_.substr(0, kept));
    held_.erase(0, kept);
  }

 private:
  Margins margins_;
  std::size_t left_;
  std::string held_;
};

/// Puts spaces between tokens.
class JoiningBySpaces final : public DecodingStep {
 public:
  void push(std::string token, const Next& next) override {
    if (!first_) token.insert(0, 1, ' ');
    first_ = false;
    next(std::move(token));
  }

 private:
  bool first_ = true;
};

/// A suffix ends words: a space in its place, but none behind the last token.
class SuffixToSpace final : public DecodingStep {
 public:
  explicit SuffixToSpace(std::string suffix) : suffix_(std::move(suffix)) {}
  void push(std::string token, const Next& next) override {
    hand_on(" ", next);
    held_ = std::move(token);
  }
  void finish(const Next& next) override { hand_on("", next); }

 private:
  void hand_on(const char* in_place, const Next& next) {
    if (!held_) return;
    replace_all(*held_, suffix_, in_place);
    next(std::move(*held_));
    held_.reset();
  }

  std::string suffix_;
  std::optional<std::string> held_;
};

/// Spaces that English does not write, as transformers' clean_up_tokenization() finds them.
void clean_up(std::string& token) {
  constexpr std::pair<const char*, const char*> kWritten[] = {
      {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},   {" n't", "n't"},
      {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& [from, to] : kWritten) replace_all(token, from, to);
}

EachToken::Rewrite word_piece_rewrite(const Field& section) {
  return
      [prefix = section.text("prefix", "##"), cleans = section.flag("cleanup", true)](std::string& token, bool first) {
        if (!first && token.starts_with(prefix)) {
          token.erase(0, prefix.size());
        } else if (!first) {
          token.insert(0, 1, ' ');
        }
        if (cleans) clean_up(token);
      };
}

EachToken::Rewrite metaspace_rewrite(const Field& section) {
  const std::string otherwise = section.flag("add_prefix_space", true) ? "always" : "never";
  const bool prepends = section.text("prepend_scheme", otherwise) != "never";
  return [mark = section.text("replacement", "\u2581"), prepends](std::string& token, bool first) {
    replace_all(token, mark, first && prepends ? "" : " ");
  };
}

}  // namespace

Decoder::Decoder(const Field& file) {
  if (const auto section = file.find("decoder")) {
    add(*section);
  } else {
    makers_.push_back([] { return std::make_unique<JoiningBySpaces>(); });
  }
}

std::vector<std::unique_ptr<DecodingStep>> Decoder::steps() const {
  std::vector<std::unique_ptr<DecodingStep>> steps;
  for (const Make& make : makers_) steps.push_back(make());
  return steps;
}

void Decoder::add(const Field& section) {
  const std::string& type = section.type("a decoder", {"Sequence", "ByteLevel", "Metaspace", "WordPiece",
                                                       "ByteFallback", "Fuse", "Strip", "Replace", "BPEDecoder"});
  if (type == "Sequence") {
    for (const Field& one : section.at("decoders").items()) add(one);
    return;
  }
  const auto each = [&](const EachToken::Rewrite& rewrite) {
    makers_.push_back([rewrite] { return std::make_unique<EachToken>(rewrite); });
  };
  if (type == "Fuse") {
    joined_ = true;
    return;
  }
  if (type == "Strip") {
    const Margins margins(section);
    if (joined_) {
      makers_.push_back([margins] { return std::make_unique<StrippingParts>(margins); });
      return;
    }
    return each([margins](std::string& token, bool /*first*/) {
      margins.strip_front(token, margins.front);
      token.resize(token.size() - margins.at_end(token) * margins.character.size());
    });
  }
  // The other steps see whole tokens.
  if (joined_) makers_.push_back([] { return std::make_unique<Joining>(); });
  joined_ = false;
  if (type == "ByteLevel") {
    joined_ = true;
    makers_.push_back([] { return std::make_unique<BytesOfCharacters>(); });
  } else if (type == "ByteFallback") {
    makers_.push_back([] { return std::make_unique<BytesOfRuns>(); });
  } else if (type == "BPEDecoder") {
    makers_.push_back([suffix = section.text("suffix", "</w>")] { return std::make_unique<SuffixToSpace>(suffix); });
  } else if (type == "Replace") {
    each([replacement = Replacement(section)](std::string& token, bool /*first*/) { replacement.apply(token); });
  } else if (type == "WordPiece") {
    each(word_piece_rewrite(section));
  } else {
    each(metaspace_rewrite(section));
  }
}

}  // namespace capstan::tokenizer
