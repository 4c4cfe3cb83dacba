#include "cli/data/end_token.hpp"

#include <optional>
#include <string>

#include "cli/command_options.hpp"
#include "cli/usage_error.hpp"

namespace capstan::cli {
namespace {

using tokenizer::Id;
using tokenizer::kNoId;
using tokenizer::Tokenizer;

constexpr const char* kOptionOfEnd = "--end-token";

bool is_number(const std::string& text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
}

}  // namespace

Id end_token(const ModelText& text, const std::string& given) {
  const Tokenizer& tokenizer = text.tokenizer();
  if (given == "none") return kNoId;
  if (given.empty()) {
    const auto eos = text.end_token();
    const std::string config = text.config_name();
    if (!eos) {
      throw UsageError(std::string(kOptionOfEnd) + ": which token ends a document? " + config +
                       " names no eos_token. Give the token's text or id, or 'none'.");
    }
    const Id id = tokenizer.find(*eos);
    if (id != kNoId) return id;
    throw UsageError(config + ": eos_token is '" + *eos + "', which " + tokenizer.file().string() +
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
