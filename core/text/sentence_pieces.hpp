#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/text/json.hpp"

namespace capstan {

/// A vocabulary of SentencePiece (Kudo and Richardson 2018), as tokenizer.model and GGUF files hold it.
struct SentencePieces {
  /// Kinds of pieces, by their numbers in both files.
  enum class Kind : std::int32_t { kNormal = 1, kUnknown, kControl, kUserDefined, kUnused, kByte };
  struct Piece {
    std::string text;  // U+2581 stands for a space
    float score = 0;
    Kind kind = Kind::kNormal;
  };
  /// Where a space is put before text that does not come from the text.
  enum class Prefix {
    kNone,
    kFirst,     // before the text, where it does not begin with a space
    kAlways,    // before each part between special tokens, where it does not begin with a space
    kSections,  // before each part between special tokens
  };

  std::vector<Piece> pieces;  // by id
  bool has_merges = true;     // byte-pair encoding, where scores order the merges; else the unigram model
  bool has_bytes = false;     // a character without a piece is the pieces of its bytes
  bool trims_spaces = false;  // spaces at both ends go, and several together become one
  Prefix prefix = Prefix::kFirst;
  std::int64_t unknown = -1;  // the id of characters without a piece; -1: none
  std::string character_map;  // the precompiled map that normalizes characters; empty: none

  /// The id of a piece, or -1.
  std::int64_t find(std::string_view text) const;
};

/// A tokenizer.json of these pieces, without post-processor: as transformers converts them.
Json tokenizer_of_pieces(const SentencePieces& pieces);

/// The post-processor that puts one token each before and behind a text; -1: none. `texts`: of both tokens.
Json tokens_around(std::int64_t before, const std::string& before_text, std::int64_t after,
                   const std::string& after_text);

}  // namespace capstan
