#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/arguments.hpp"
#include "cli/model_text.hpp"

namespace capstan::cli {

/// A sequence that a model continues.
struct Prompt {
  std::vector<std::int64_t> ids;
  std::optional<std::string> text;  // that the ids are made of
};

/// "1,450,4996", the value of `option`. Throws UsageError.
std::vector<std::int64_t> token_ids(const std::string& option, const std::string& text);

/// The prompts of --prompt, --ids or --prompts. Throws UsageError, and ConfigError naming the line of a file.
std::vector<Prompt> read_prompts(const GenerateArguments& arguments);

/// Makes the tokens of texts: by the model's tokenizer, with the special tokens that it puts around a text but for
/// those behind it, or without one (null) of their bytes. Throws ConfigError for an empty prompt, and for a text where
/// there is no tokenizer and the vocabulary is not that of bytes.
void make_tokens(std::vector<Prompt>& prompts, const ModelText* text, std::int64_t vocabulary);

/// The text of new tokens. `text`: as for make_tokens().
std::string text_of_tokens(const std::vector<std::int64_t>& tokens, const ModelText* text);

/// The answer to a prompt of a file as it is printed, a JSON object on a line.
std::string answer_line(const Prompt& prompt, const std::vector<std::int64_t>& tokens, const ModelText* text);
/// "101,102"
std::string ids_text(const std::vector<std::int64_t>& tokens);

}  // namespace capstan::cli
