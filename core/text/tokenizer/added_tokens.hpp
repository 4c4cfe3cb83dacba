#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/text/tokenizer/byte_trie.hpp"
#include "core/text/tokenizer/field.hpp"
#include "core/text/tokenizer/normalizer.hpp"
#include "core/text/tokenizer/vocabulary.hpp"

namespace capstan::tokenizer {

/// Tokens that a text is searched for before the model sees it: the section "added_tokens" of tokenizer.json. Several
/// threads may use one.
class AddedTokens {
 public:
  /// A part of a text: a token, or text between tokens where id is kNoId.
  struct Part {
    std::string_view text;
    Id id;
  };

  /// `normalizer` may be null. Throws RuntimeFault with the place of an id that the vocabulary has for another text.
  AddedTokens(const Field& file, const Vocabulary& vocabulary, const Normalizer* normalizer);

  /// Appends the parts of a text, from left to right: of tokens that begin at one place the longest. `normalized`:
  /// those that are searched for in normalized text, else those in the text as it is.
  void split(std::string_view text, bool normalized, std::vector<Part>& parts) const;

  /// The text of a token, or null.
  const std::string* text(Id id) const;
  /// The id of a token's text, or kNoId.
  Id find(std::string_view text) const;
  bool is_special(Id id) const;
  /// Whether a token takes the white space beside it, which is lost then.
  bool takes_space() const;
  /// One more than the largest id; 0 without tokens.
  Id end() const { return end_; }

 private:
  struct Token {
    std::string text;
    Id id = kNoId;
    bool is_special = false;
    bool alone = false;                            // single_word: no part of a word
    bool takes_left = false, takes_right = false;  // lstrip, rstrip: with the white space beside it
    bool in_normalized = false;
  };

  ByteTrie trie_of(bool normalized, const Normalizer* normalizer) const;
  bool is_part_of_word(std::string_view text, std::size_t begin, std::size_t end) const;

  std::vector<Token> tokens_;
  std::unordered_map<Id, std::size_t> by_id_;
  Id end_ = 0;
  std::optional<ByteTrie> plain_, normalized_;
};

}  // namespace capstan::tokenizer
