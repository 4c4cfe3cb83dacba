#include "core/text/tokenizer/normalizer.hpp"

#include <map>
#include <utility>
#include <vector>

#include "core/text/tokenizer/byte_characters.hpp"
#include "core/text/tokenizer/character_map.hpp"
#include "core/text/tokenizer/replacement.hpp"
#include "core/text/tokenizer/unicode.hpp"

namespace capstan::tokenizer {
namespace {

class NormalizerSequence final : public Normalizer {
 public:
  explicit NormalizerSequence(const Field& section) {
    for (const Field& one : section.at("normalizers").items()) all_.push_back(make_normalizer(one));
  }
  void apply(std::string& text) const override {
    for (const auto& one : all_) one->apply(text);
  }

 private:
  std::vector<std::unique_ptr<Normalizer>> all_;
};

/// Rewrites a text wherever it stands.
class Rewriting final : public Normalizer {
 public:
  using Function = std::string (*)(std::string_view);
  explicit Rewriting(Function rewrite) : rewrite_(rewrite) {}
  void apply(std::string& text) const override { text = rewrite_(text); }

 private:
  Function rewrite_;
};

class Prepending final : public Normalizer {
 public:
  explicit Prepending(const Field& section) : prefix_(section.at("prepend").text()) {}
  void apply(std::string& text) const override {
    if (!text.empty()) text.insert(0, prefix_);
  }

 private:
  std::string prefix_;
};

class Stripping final : public Normalizer {
 public:
  explicit Stripping(const Field& section)
      : left_(section.flag("strip_left", true)), right_(section.flag("strip_right", true)) {}
  void apply(std::string& text) const override {
    std::string_view kept = text;
    while (left_ && !kept.empty() && is_white_space(character_at(kept, 0))) kept.remove_prefix(length_of(kept[0]));
    while (right_ && !kept.empty() && is_white_space(character_at(kept, last_character(kept)))) {
      kept = kept.substr(0, last_character(kept));
    }
    text = std::string(kept);
  }

 private:
  bool left_, right_;
};

class Replacing final : public Normalizer {
 public:
  explicit Replacing(const Field& section) : replacement_(section) {}
  void apply(std::string& text) const override { replacement_.apply(text); }

 private:
  Replacement replacement_;
};

std::string without(std::string_view text, bool (*is_left_out)(char32_t)) {
  std::string out;
  out.reserve(text.size());
  each_character(text, [&](char32_t character) {
    if (!is_left_out(character)) append_character(out, character);
  });
  return out;
}

/// BasicTokenizer of BERT (Devlin et al. 2018) before it splits.
class BertNormalizer final : public Normalizer {
 public:
  explicit BertNormalizer(const Field& section)
      : cleans_(section.flag("clean_text", true)),
        parts_ideographs_(section.flag("handle_chinese_chars", true)),
        lowers_(section.flag("lowercase", true)),
        strips_accents_(section.flag("strip_accents", lowers_)) {}

  void apply(std::string& text) const override {
    std::string out;
    out.reserve(text.size());
    each_character(text, [&](char32_t character) {
      const bool blank = is_white_space(character);
      if (cleans_ && (character == 0 || character == 0xFFFD)) return;
      if (cleans_ && is_control(character) && character != '\t' && character != '\n' && character != '\r') return;
      if (parts_ideographs_ && is_ideograph(character)) {
        out += ' ';
        append_character(out, character);
        out += ' ';
      } else {
        append_character(out, cleans_ && blank ? U' ' : character);
      }
    });
    if (strips_accents_) out = without(normalized(out, Form::kNfd), is_nonspacing_mark);
    text = lowers_ ? lower_case(out) : std::move(out);
  }

 private:
  bool cleans_, parts_ideographs_, lowers_, strips_accents_;
};

/// SentencePiece's rule "nmt": control characters go, blanks of all kinds become spaces.
std::string clean_for_translation(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  each_character(text, [&](char32_t character) {
    const auto between = [&](char32_t low, char32_t high) { return character >= low && character <= high; };
    if (between(0x01, 0x08) || character == 0x0B || between(0x0E, 0x1F) || character == 0x7F || character == 0x8F ||
        character == 0x9F) {
      return;
    }
    const bool blank = character == 0x09 || character == 0x0A || character == 0x0C || character == 0x0D ||
                       character == 0x1680 || between(0x200B, 0x200F) || character == 0x2028 || character == 0x2029 ||
                       character == 0x2581 || character == 0xFEFF || character == 0xFFFD;
    append_character(out, blank ? U' ' : character);
  });
  return out;
}

const std::map<std::string, Rewriting::Function>& rewritings() {
  static const std::map<std::string, Rewriting::Function> all = {
      {"NFC", [](std::string_view text) { return normalized(text, Form::kNfc); }},
      {"NFD", [](std::string_view text) { return normalized(text, Form::kNfd); }},
      {"NFKC", [](std::string_view text) { return normalized(text, Form::kNfkc); }},
      {"NFKD", [](std::string_view text) { return normalized(text, Form::kNfkd); }},
      {"Lowercase", lower_case},
      {"StripAccents", [](std::string_view text) { return without(text, is_mark); }},
      {"ByteLevel", bytes_to_characters},
      {"Nmt", clean_for_translation}};
  return all;
}

}  // namespace

std::unique_ptr<Normalizer> make_normalizer(const Field& section) {
  const std::string& type =
      section.type("a normalizer", {"Sequence", "NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Strip", "StripAccents",
                                    "Prepend", "Replace", "BertNormalizer", "ByteLevel", "Nmt", "Precompiled"});
  if (type == "Sequence") return std::make_unique<NormalizerSequence>(section);
  if (type == "Strip") return std::make_unique<Stripping>(section);
  if (type == "Prepend") return std::make_unique<Prepending>(section);
  if (type == "Replace") return std::make_unique<Replacing>(section);
  if (type == "BertNormalizer") return std::make_unique<BertNormalizer>(section);
  if (type == "Precompiled") return std::make_unique<CharacterMap>(section.at("precompiled_charsmap"));
  return std::make_unique<Rewriting>(rewritings().at(type));
}

}  // namespace capstan::tokenizer
