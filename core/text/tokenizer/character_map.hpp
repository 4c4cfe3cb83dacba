#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/text/tokenizer/field.hpp"
#include "core/text/tokenizer/normalizer.hpp"

namespace capstan::tokenizer {

/// SentencePiece's precompiled map of characters: a double-array trie of Darts-clone (Yata 2009) whose values are
/// offsets of NUL-terminated replacements. tokenizer.json has it in base64: u32 bytes of the trie, the trie, the
/// replacements; little endian.
class CharacterMap final : public Normalizer {
 public:
  /// `field` is the member "precompiled_charsmap". Throws RuntimeFault with its place where it is damaged.
  explicit CharacterMap(const Field& field);

  /// Replaces as the tokenizers library does: a grapheme of at most 5 bytes by what its shortest prefix in the map
  /// stands for, otherwise each of its characters by itself.
  void apply(std::string& text) const override;

 private:
  /// Whether a prefix of `text` is in the map; then `replacement` is what the shortest stands for.
  bool find(std::string_view text, std::string_view& replacement) const;

  std::vector<std::uint32_t> units_;
  std::string replacements_;
};

}  // namespace capstan::tokenizer
