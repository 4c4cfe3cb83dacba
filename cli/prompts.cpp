#include "cli/prompts.hpp"

#include <algorithm>
#include <fstream>
#include <string_view>

#include "cli/usage_error.hpp"
#include "core/errors.hpp"
#include "core/text/json.hpp"
#include "core/text/utf8.hpp"

namespace capstan::cli {
namespace {

constexpr std::int64_t kBytes = 256;

Prompt text_prompt(const std::string& text) {
  Prompt prompt{{}, true};
  for (const char byte : text) prompt.ids.push_back(static_cast<unsigned char>(byte));
  return prompt;
}

Prompt prompt_of_line(const std::string& where, const std::string& line) {
  Json given;
  try {
    given = Json::parse(line);
  } catch (const ConfigError& error) {
    throw ConfigError(where + ": " + error.what());
  }
  const Json *text = given.find("text"), *ids = given.find("ids");
  if (text && text->is_string() && !ids) return text_prompt(text->as_string());
  Prompt prompt;
  if (ids && ids->is_array() && !text) {
    for (const Json& id : ids->as_array()) {
      if (!id.is_integer()) throw ConfigError(where + ": ids: must be whole numbers, has " + id.dump() + ".");
      prompt.ids.push_back(id.as_integer());
    }
    return prompt;
  }
  throw ConfigError(where + R"(: must be {"text": "..."} or {"ids": [1, 2]}, got )" + line + ".");
}

/// Text with U+FFFD in the place of bytes that are not UTF-8.
std::string as_utf8(std::string text) {
  for (std::size_t from = 0;;) {
    const auto bad = first_invalid_utf8(std::string_view(text).substr(from));
    if (!bad) return text;
    text.replace(from + *bad, 1, "\xEF\xBF\xBD");
    from += *bad + 3;
  }
}

std::string text_of(const std::vector<std::int64_t>& tokens) {
  std::string text;
  for (const std::int64_t token : tokens) text += static_cast<char>(token);
  return text;
}

}  // namespace

std::vector<std::int64_t> token_ids(const std::string& option, const std::string& text) {
  std::vector<std::int64_t> ids;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    if (word.empty() || word.size() > 18 || word.find_first_not_of("0123456789") != std::string::npos) {
      throw UsageError(option + ": must be token ids with commas between, as 1,450,4996, got '" + text + "'.");
    }
    ids.push_back(std::stoll(word));
    begin = end + 1;
  }
  return ids;
}

std::vector<Prompt> read_prompts(const GenerateArguments& arguments) {
  if (!arguments.ids.empty()) return {Prompt{token_ids("--ids", arguments.ids)}};
  if (arguments.prompts.empty()) return {text_prompt(arguments.prompt)};
  std::ifstream file(arguments.prompts);
  if (!file) throw ConfigError("--prompts: '" + arguments.prompts + "' cannot be read.");
  std::vector<Prompt> prompts;
  int number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    if (line.empty()) continue;
    prompts.push_back(prompt_of_line(arguments.prompts + ":" + std::to_string(number), line));
  }
  if (prompts.empty()) throw ConfigError("--prompts: '" + arguments.prompts + "' has no line with a prompt.");
  return prompts;
}

void check_prompts(const std::vector<Prompt>& prompts, std::int64_t vocabulary) {
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const std::string where = "prompt " + std::to_string(i + 1);
    if (prompts[i].ids.empty()) throw ConfigError(where + ": is empty. A model continues at least one token.");
    if (prompts[i].is_text && vocabulary != kBytes) {
      throw ConfigError(where + ": is text, whose tokens are bytes, and the model has a vocabulary of " +
                        std::to_string(vocabulary) + ". Give the ids of its tokens.");
    }
  }
}

std::string answer_text(const Prompt& prompt, const std::vector<std::int64_t>& tokens, bool of_file) {
  if (of_file) {
    Json line = Json::object();
    line["ids"] = Json::Array(tokens.begin(), tokens.end());
    if (prompt.is_text) line["text"] = as_utf8(text_of(tokens));
    return line.dump() + "\n";
  }
  if (prompt.is_text) return text_of(prompt.ids) + text_of(tokens) + "\n";
  std::string text;
  for (const std::int64_t token : tokens) text += (text.empty() ? "" : ",") + std::to_string(token);
  return text + "\n";
}

}  // namespace capstan::cli
