#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "core/text/json.hpp"
#include "core/text/template/chat_template.hpp"
#include "core/text/tokenizer/tokenizer.hpp"

namespace capstan {

/// How a model's texts become tokens: its tokenizer, its special tokens and its chat template. Several threads may use
/// one.
class ModelText {
 public:
  /// Of a folder with tokenizer.json, tokenizer.model or *.tiktoken, of that file, or of a GGUF file. Throws
  /// RuntimeFault naming the file.
  explicit ModelText(const std::filesystem::path& path);
  /// Of files by their names, a tokenizer's or metadata.gguf among them. `where`: for messages. Throws RuntimeFault.
  ModelText(const std::map<std::string, std::string>& files, const std::string& where);

  /// Whether such files have a tokenizer. Throws RuntimeFault for a metadata.gguf that cannot be read.
  static bool has_tokenizer(const std::map<std::string, std::string>& files, const std::string& where);

  const tokenizer::Tokenizer& tokenizer() const { return tokenizer_; }
  /// The text of eos_token of tokenizer_config.json; nothing where there is none.
  std::optional<std::string> end_token() const;
  /// The file that names special tokens, for messages.
  std::string config_name() const;
  /// `file`: a template to use instead, where not empty. Throws RuntimeFault, and TemplateError.
  text_template::ChatTemplate chat_template(const std::filesystem::path& file = {}) const;

 private:
  struct Parts;
  explicit ModelText(Parts parts);

  std::string where_;  // for messages
  tokenizer::Tokenizer tokenizer_;
  Json config_;                                  // tokenizer_config.json
  std::optional<std::string> chat_template_;     // chat_template.jinja, of files by their names
  std::optional<std::filesystem::path> folder_;  // of the tokenizer's file; nothing: files by their names, GGUF
};

}  // namespace capstan
