#include "core/run/prompts.hpp"

#include <fstream>
#include <limits>

#include "core/errors.hpp"
#include "core/text/json.hpp"

namespace capstan {
namespace {

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

std::vector<Prompt> read_prompt_file(const std::string& path, const std::string& option) {
  std::ifstream file(path);
  if (!file) throw ConfigError(option + ": '" + path + "' cannot be read.");
  std::vector<Prompt> prompts;
  int number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    if (line.empty()) continue;
    prompts.push_back(prompt_of_line(path + ":" + std::to_string(number), line));
  }
  if (prompts.empty()) throw ConfigError(option + ": '" + path + "' has no line with a prompt.");
  return prompts;
}

void make_tokens(std::vector<Prompt>& prompts, const ModelText* text, std::int64_t vocabulary,
                 const std::string& tokenizer_option) {
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const std::string where = "prompt " + std::to_string(i + 1);
    Prompt& prompt = prompts[i];
    if (prompt.text && text) {
      prompt.ids = tokens_of(*prompt.text, *text);
    } else if (prompt.text) {
      for (const char byte : *prompt.text) prompt.ids.push_back(static_cast<unsigned char>(byte));
    }
    if (prompt.ids.empty()) throw ConfigError(where + ": is empty. A model continues at least one token.");
    if (prompt.text && !text && vocabulary != kByteVocabulary) {
      throw ConfigError(where + ": is text, the model comes without a tokenizer, and its vocabulary of " +
                        std::to_string(vocabulary) + " is not that of bytes. Name a folder with " + tokenizer_option +
                        ", or give the ids of the tokens.");
    }
  }
}

void check_prompts(const std::vector<Prompt>& prompts, const Vocabulary& vocabulary, std::int64_t new_tokens,
                   const std::string& tokens_option) {
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const std::string where = "prompt " + std::to_string(i + 1) + ": ";
    const auto tokens = static_cast<std::int64_t>(prompts[i].ids.size());
    if (vocabulary.positions > 0 && (tokens > vocabulary.positions || new_tokens - 1 > vocabulary.positions - tokens)) {
      throw ConfigError(where + std::to_string(tokens) + " tokens and " + tokens_option + " " +
                        std::to_string(new_tokens) + " take " +
                        (new_tokens - 1 > std::numeric_limits<std::int64_t>::max() - tokens
                             ? "too many"
                             : std::to_string(tokens + new_tokens - 1)) +
                        " positions, and this model has " + std::to_string(vocabulary.positions) +
                        ". Shorten the prompt, or lower " + tokens_option + ".");
    }
    for (const std::int64_t id : prompts[i].ids) {
      if (id >= 0 && (vocabulary.size == 0 || id < vocabulary.size)) continue;
      throw ConfigError(where + "holds id " + std::to_string(id) + ", this model's vocabulary is 0 to " +
                        std::to_string(vocabulary.size - 1) + ". Tokens of another model's tokenizer do not fit.");
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

std::string ids_text(const std::vector<std::int64_t>& tokens) {
  std::string text;
  for (const std::int64_t token : tokens) text += (text.empty() ? "" : ",") + std::to_string(token);
  return text;
}

}  // namespace capstan
