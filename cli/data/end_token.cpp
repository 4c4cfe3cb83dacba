#include "cli/data/end_token.hpp"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>

#include "cli/command_options.hpp"
#include "cli/usage_error.hpp"
#include "core/errors.hpp"
#include "core/text/json.hpp"

namespace capstan::cli {
namespace {

using tokenizer::Id;
using tokenizer::kNoId;
using tokenizer::Tokenizer;

constexpr const char* kOptionOfEnd = "--end-token";

/// eos_token of a file beside the tokenizer's: a text, or an object with its content.
std::optional<std::string> eos_token(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) return std::nullopt;
  const std::string text((std::istreambuf_iterator<char>(in)), {});
  Json json;
  try {
    json = Json::parse(text);
  } catch (const ConfigError& error) {
    throw RuntimeFault(file.string() + ": " + error.what());
  }
  const Json* token = json.find("eos_token");
  if (token != nullptr && token->is_object()) token = token->find("content");
  return token != nullptr && token->is_string() ? std::optional(token->as_string()) : std::nullopt;
}

bool is_number(const std::string& text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
}

}  // namespace

Id end_token(const Tokenizer& tokenizer, const std::string& given) {
  if (given == "none") return kNoId;
  if (given.empty()) {
    const std::filesystem::path config = tokenizer.file().parent_path() / "tokenizer_config.json";
    const auto eos = eos_token(config);
    if (!eos) {
      throw UsageError(std::string(kOptionOfEnd) + ": which token ends a document? " + config.string() +
                       " names no eos_token. Give the token's text or id, or 'none'.");
    }
    const Id id = tokenizer.find(*eos);
    if (id != kNoId) return id;
    throw UsageError(config.string() + ": eos_token is '" + *eos + "', which " + tokenizer.file().string() +
                     " does not have. Give another one with " + kOptionOfEnd + ", or 'none'.");
  }
  if (is_number(given) && whole_number(kOptionOfEnd, given) < tokenizer.vocabulary_size()) {
    return static_cast<Id>(whole_number(kOptionOfEnd, given));
  }
  if (const Id id = tokenizer.find(given); id != kNoId && !is_number(given)) return id;
  throw UsageError(std::string(kOptionOfEnd) + ": '" + given + "' is not a token of " + tokenizer.file().string() +
                   ", and not an id below " + std::to_string(tokenizer.vocabulary_size()) + ".");
}

}  // namespace capstan::cli
