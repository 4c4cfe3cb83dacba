#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/pretrained/gguf_entries.hpp"
#include "core/text/json.hpp"

namespace capstan {

/// A tokenizer in the terms of llama.cpp.
struct GgufTokenizerMetadata {
  Json facts = Json::object();     // single values, by their keys
  GgufEntries arrays;              // tokens, their kinds, merges or scores
  std::vector<std::string> notes;  // sentences about texts that llama.cpp tokenizes in another way
};

/// Translates a tokenizer.json of byte-level BPE, or of BPE as SentencePiece trains it. `config`:
/// tokenizer_config.json. `vocabulary`: rows of the model's embedding; ids without a token become unused tokens. Throws
/// RuntimeFault with the reason where llama.cpp has no equal.
GgufTokenizerMetadata gguf_tokenizer_metadata(const Json& tokenizer, const Json& config,
                                              const std::optional<std::string>& chat_template, std::int64_t vocabulary);

}  // namespace capstan
