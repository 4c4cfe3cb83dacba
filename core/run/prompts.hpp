#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/pretrained/model_text.hpp"
#include "core/run/vocabulary.hpp"

namespace capstan {

/// The size of a vocabulary whose tokens are bytes.
inline constexpr std::int64_t kByteVocabulary = 256;

/// A sequence that a model continues.
struct Prompt {
  std::vector<std::int64_t> ids;
  std::optional<std::string> text;  // that the ids are made of
};

/// The prompts of a file of JSON lines, {"text": "..."} or {"ids": [1, 2]}. `option`: the option or key that names the
/// file, for messages. Throws ConfigError with the file and the line.
std::vector<Prompt> read_prompt_file(const std::string& path, const std::string& option);

/// Makes the tokens of texts: by the model's tokenizer, with the special tokens that it puts around a text but for
/// those behind it, or without one (null) of their bytes. Throws ConfigError for an empty prompt, and for a text where
/// there is no tokenizer and the vocabulary is not that of bytes; it names `tokenizer_option`, by which a user gives
/// one.
void make_tokens(std::vector<Prompt>& prompts, const ModelText* text, std::int64_t vocabulary,
                 const std::string& tokenizer_option = "--tokenizer");

/// Throws ConfigError for a prompt that the model cannot continue by so many tokens: beyond its positions, or with ids
/// that are not in its vocabulary. `tokens_option`: what sets the number of new tokens.
void check_prompts(const std::vector<Prompt>& prompts, const Vocabulary& vocabulary, std::int64_t new_tokens,
                   const std::string& tokens_option);

/// The text of new tokens. `text`: as for make_tokens().
std::string text_of_tokens(const std::vector<std::int64_t>& tokens, const ModelText* text);
/// "101,102"
std::string ids_text(const std::vector<std::int64_t>& tokens);

}  // namespace capstan
