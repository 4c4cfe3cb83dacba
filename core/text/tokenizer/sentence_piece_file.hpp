#pragma once

#include <string>
#include <string_view>

#include "core/text/sentence_pieces.hpp"

namespace capstan::tokenizer {

/// A model file of SentencePiece (sentencepiece_model.proto), and what it says of special tokens; -1: none.
struct SentencePieceFile {
  SentencePieces pieces;  // with a prefix before the text, or none
  std::int64_t begin = -1, end = -1;
};

/// Reads the bytes of tokenizer.model. `where` opens messages. Throws RuntimeFault: damaged, or a model of words or
/// characters, or spaces that stand behind words or are not marked.
SentencePieceFile read_sentence_pieces(std::string_view bytes, const std::string& where);

}  // namespace capstan::tokenizer
