#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/arguments.hpp"
#include "core/run/prompts.hpp"

namespace capstan::cli {

/// "1,450,4996", the value of `option`. Throws UsageError.
std::vector<std::int64_t> token_ids(const std::string& option, const std::string& text);

/// The prompts of --prompt, --ids or --prompts. Throws UsageError, and ConfigError naming the line of a file.
std::vector<Prompt> read_prompts(const GenerateArguments& arguments);

/// The answer to a prompt of a file as it is printed, a JSON object on a line.
std::string answer_line(const Prompt& prompt, const std::vector<std::int64_t>& tokens, const ModelText* text);

}  // namespace capstan::cli
