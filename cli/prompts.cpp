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

Prompt prompt_of_line(const std::string& where, const std::string& line) {
  Json given;
  try {
    given = Json::parse(line);
  } catch (const ConfigError& error) {
    throw ConfigError(where + ": " + error.what());
  }
  const Json *text = given.find("text"), *ids = given.find("ids");
  if (text && text->is_string() && !ids) return {{}, text->as_string()};
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

std::string text_of_bytes(const std::vector<std::int64_t>& tokens) {
  std::string text;
  for (const std::int64_t token : tokens) text += static_cast<char>(token);
  return text;
}

std::vector<std::int64_t> tokens_of(const std::string& text, const ModelText& by) {
  tokenizer::Ids ids = by.tokenizer().before();
  tokenizer::Encoder(by.tokenizer()).encode(text, ids);
  return {ids.begin(), ids.end()};
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
  if (arguments.prompts.empty()) return {Prompt{{}, arguments.prompt}};
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

void make_tokens(std::vector<Prompt>& prompts, const ModelText* text, std::int64_t vocabulary) {
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const std::string where = "prompt " + std::to_string(i + 1);
    Prompt& prompt = prompts[i];
    if (prompt.text && text) {
      prompt.ids = tokens_of(*prompt.text, *text);
    } else if (prompt.text) {
      for (const char byte : *prompt.text) prompt.ids.push_back(static_cast<unsigned char>(byte));
    }
    if (prompt.ids.empty()) throw ConfigError(where + ": is empty. A model continues at least one token.");
    if (prompt.text && !text && vocabulary != kBytes) {
      throw ConfigError(where + ": is text, the model comes without a tokenizer, and its vocabulary of " +
                        std::to_string(vocabulary) +
                        " is not that of bytes. Name a folder with --tokenizer, or give the ids of the tokens.");
    }
  }
}

std::string text_of_tokens(const std::vector<std::int64_t>& tokens, const ModelText* text) {
  if (!text) return text_of_bytes(tokens);
  tokenizer::DecodeStream decoding(text->tokenizer());
  std::string decoded;
  for (const std::int64_t token : tokens) decoded += decoding.push(static_cast<tokenizer::Id>(token));
  return decoded + decoding.finish();
}

std::string answer_line(const Prompt& prompt, const std::vector<std::int64_t>& tokens, const ModelText* text) {
  Json line = Json::object();
  line["ids"] = Json::Array(tokens.begin(), tokens.end());
  if (prompt.text) line["text"] = as_utf8(text_of_tokens(tokens, text));
  return line.dump() + "\n";
}

std::string ids_text(const std::vector<std::int64_t>& tokens) {
  std::string text;
  for (const std::int64_t token : tokens) text += (text.empty() ? "" : ",") + std::to_string(token);
  return text;
}

}  // namespace capstan::cli
