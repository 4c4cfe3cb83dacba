#pragma once

#include <string>

#include "core/pretrained/gguf_header.hpp"
#include "core/text/json.hpp"

namespace capstan {

/// The tokenizer of a GGUF file in the terms of transformers.
struct GgufTokenizer {
  Json tokenizer;  // as tokenizer.json
  Json config;     // as tokenizer_config.json: special tokens and the chat template
};

/// Whether the file has a tokenizer, of whatever kind.
bool has_tokenizer(const GgufHeader& header);

/// Translates what llama.cpp calls "gpt2" (byte-level BPE), "llama" (SentencePiece's BPE), "t5" (unigram) and "bert"
/// (WordPiece). `where` opens messages. Throws RuntimeFault for a file without a tokenizer, for another kind, and for a
/// way of splitting words (tokenizer.ggml.pre) that is not known here.
GgufTokenizer tokenizer_of_gguf(const GgufHeader& header, const std::string& where);

}  // namespace capstan
