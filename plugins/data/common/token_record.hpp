#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>

#include "capstan/sdk/component.hpp"

namespace capstan::data {

/// How tokens were made: what DATA.json says of the file DATA beside it, where 'capstan data tokenize' has written it.
struct TokenRecord {
  std::string format;  // "uint16", "uint32", "int32"
  std::int64_t tokens, largest_token;

  /// Throws sdk::Error where the file has another number of tokens than when the record was written.
  void check_tokens(const std::filesystem::path& of, std::int64_t found) const {
    if (found == tokens) return;
    throw sdk::Error("'" + of.string() + "' has " + std::to_string(found) + " tokens, but '" + of.string() +
                     ".json' says " + std::to_string(tokens) +
                     ": it was cut off or replaced. Tokenize again, or remove the record.");
  }

  /// Throws sdk::Error where the model has no row for the largest token. `vocabulary` 0: not known.
  void check_vocabulary(const std::filesystem::path& of, std::int64_t vocabulary) const {
    if (vocabulary == 0 || largest_token < vocabulary) return;
    throw sdk::Error("'" + of.string() + "' has token " + std::to_string(largest_token) + ", as '" + of.string() +
                     ".json' says, but the model's vocabulary has " + std::to_string(vocabulary) +
                     " entries. Use the tokeniser that the model was made for, or a larger vocabulary.");
  }
};

/// The record of a file; nothing where there is none. Throws sdk::Error where DATA.json is damaged.
inline std::optional<TokenRecord> read_token_record(const sdk::Host& host, const std::filesystem::path& of) {
  const std::string path = of.string() + ".json";
  std::ifstream in(path, std::ios::binary);
  if (!in) return std::nullopt;
  const std::string text((std::istreambuf_iterator<char>(in)), {});
  const sdk::Document json(host.raw(), sdk::to_str(text), sdk::current_error);
  try {
    if (!json.has("format") || !json.has("tokens") || !json.has("largest_token")) return std::nullopt;
    return TokenRecord{json.text("format"), json.integer("tokens"), json.integer("largest_token")};
  } catch (const sdk::HostFailure&) {
    throw sdk::Error(
        "'" + path +
        "' is not the record of tokens that 'capstan data tokenize' writes. Tokenize again, or remove it.");
  }
}

}  // namespace capstan::data
