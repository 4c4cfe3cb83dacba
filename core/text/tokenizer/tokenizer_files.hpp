#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "core/text/json.hpp"

namespace capstan::tokenizer {

/// The files of a model that tell its tokenizer: of a folder, or in memory. Every mistake is a RuntimeFault that names
/// the file.
class TokenizerFiles {
 public:
  explicit TokenizerFiles(std::filesystem::path folder) : folder_(std::move(folder)) {}
  /// The contents of files by their names. `where`: for messages. Both outlive it.
  TokenizerFiles(const std::map<std::string, std::string>& files, std::string where)
      : files_(&files), where_(std::move(where)) {}

  bool has(const std::string& name) const;
  std::string read(const std::string& name) const;
  /// The file as messages name it: "folder/name", or "where: name".
  std::string place(const std::string& name) const;

  /// The name of the file that holds the tokens: tokenizer.json, or else tokenizer.model, spiece.model or *.tiktoken;
  /// nothing where there is none.
  std::optional<std::string> tokens() const;
  /// tokenizer_config.json; an empty object where it is missing.
  Json config() const;

 private:
  std::filesystem::path folder_;
  const std::map<std::string, std::string>* files_ = nullptr;
  std::string where_;
};

/// The contents of tokenizer.json: of the file `name` itself, or as transformers converts another file of tokens, a
/// model of SentencePiece or ranks of tiktoken, with what tokenizer_config.json and config.json say of it. Throws
/// RuntimeFault naming the file: damaged, or of a kind that is not known here.
Json tokenizer_json(const TokenizerFiles& files, const std::string& name);

}  // namespace capstan::tokenizer
