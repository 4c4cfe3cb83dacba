#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/text/json.hpp"

namespace capstan {

/// How llama.cpp splits texts into words before it merges bytes, by the name that GGUF files give it
/// (tokenizer.ggml.pre): patterns that split one after the other.
struct GgufWordSplit {
  const char* name;
  std::vector<const char*> patterns;
  bool composes = false;     // the models' own tokenizer.json has NFC, which llama.cpp leaves out
  bool whole_words = false;  // a word that is a token needs no merges
  bool begins = false;       // the first token of a text is bos_token, unless the file says otherwise
};

/// The split of a name; null: not known here. A file without a name has "default".
const GgufWordSplit* find_word_split(std::string_view name);
/// "default, llama-bpe, ..."
std::string known_word_splits();

/// The first split that splits as the section "pre_tokenizer" of a tokenizer.json does, with that member ignore_merges
/// of its model; null: llama.cpp has none, and `reason` says what it lacks.
const GgufWordSplit* word_split_of(const Json& pre_tokenizer, bool whole_words, std::string& reason);

/// The section "pre_tokenizer" of a tokenizer.json that splits so.
Json pre_tokenizer_of(const GgufWordSplit& split);

}  // namespace capstan
