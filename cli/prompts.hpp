#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/arguments.hpp"

namespace capstan::cli {

/// A sequence that a model continues.
struct Prompt {
  std::vector<std::int64_t> ids;
  bool is_text = false;  // its tokens are bytes
};

/// "1,450,4996", the value of `option`. Throws UsageError.
std::vector<std::int64_t> token_ids(const std::string& option, const std::string& text);

/// The prompts of --prompt, --ids or --prompts. Throws UsageError, and ConfigError naming the line of a file.
std::vector<Prompt> read_prompts(const GenerateArguments& arguments);

/// Throws ConfigError for an empty prompt, and for a text where the vocabulary is not that of bytes.
void check_prompts(const std::vector<Prompt>& prompts, std::int64_t vocabulary);

/// New tokens as they are printed, with the line's end: a JSON object for a prompt of a file, else a text with its
/// prompt, or ids.
std::string answer_text(const Prompt& prompt, const std::vector<std::int64_t>& tokens, bool of_file);

}  // namespace capstan::cli
