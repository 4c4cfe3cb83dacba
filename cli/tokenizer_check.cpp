#include "cli/tokenizer_check.hpp"

#include <optional>
#include <system_error>

#include "cli/data/token_record.hpp"
#include "core/log.hpp"
#include "core/registry/file_hash.hpp"

namespace capstan::cli {

void warn_of_another_tokenizer(const std::vector<std::string>& data, const std::filesystem::path& weights) {
  std::error_code error;
  const std::filesystem::path tokenizer = weights / "tokenizer.json";
  if (weights.empty() || !std::filesystem::is_regular_file(tokenizer, error)) return;
  for (const std::string& path : data) {
    const std::optional<TokenRecord> record = TokenRecord::read(path);
    // Tokens made by a GGUF file have the hash of the whole file, weights and all.
    if (!record || record->tokenizer.filename() != tokenizer.filename()) continue;
    if (sha256_of_file(tokenizer) == record->tokenizer_sha256) continue;
    log::warning("'" + path + "' was tokenized with '" + record->tokenizer.string() + "', and the model comes with '" +
                 tokenizer.string() +
                 "', another file (its SHA-256 differs). Unless the two stand for the same tokens, the model reads "
                 "other text than was tokenized: tokenize again with --tokenizer '" +
                 weights.string() + "'.");
  }
}

}  // namespace capstan::cli
