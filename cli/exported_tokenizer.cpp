#include "cli/exported_tokenizer.hpp"

#include <optional>
#include <utility>

#include "core/errors.hpp"
#include "core/log.hpp"
#include "core/pretrained/gguf_tokenizer.hpp"
#include "core/pretrained/gguf_tokenizer_export.hpp"
#include "core/text/tokenizer/tokenizer_files.hpp"

namespace capstan::cli {
namespace {

constexpr const char* kKind = "tokenizer.ggml.model";
constexpr const char* kWhere = "the checkpoint";

/// The template of chat_template.jinja, or of tokenizer_config.json: a text, or a list in which "default" is taken.
std::optional<std::string> chat_template_of(const std::map<std::string, std::string>& files, const Json& config) {
  if (const auto file = files.find("chat_template.jinja"); file != files.end()) return file->second;
  const Json* found = config.find("chat_template");
  if (found != nullptr && found->is_array()) {
    for (const Json& one : found->as_array()) {
      const Json *name = one.find("name"), *text = one.find("template");
      if (name != nullptr && *name == Json("default") && text != nullptr) found = text;
    }
  }
  return found != nullptr && found->is_string() ? std::optional(found->as_string()) : std::nullopt;
}

/// Whether the metadata of the GGUF file that a model came from have a tokenizer, which the export keeps.
bool keep_entries(ExportedTokenizer& made) {
  const auto found = made.files.find(kGgufMetadata);
  if (found == made.files.end()) return false;
  GgufHeader header =
      parse_gguf(static_cast<const std::byte*>(found->second.const_data_ptr()),
                 static_cast<std::uint64_t>(found->second.numel()), std::string(kWhere) + "'s " + kGgufMetadata);
  const bool has = has_tokenizer(header);
  made.entries = std::move(header.metadata);
  return has;
}

}  // namespace

ExportedTokenizer exported_tokenizer(CarriedFiles files, const Json& model_config, const Json& facts) {
  ExportedTokenizer made;
  made.files = std::move(files);
  if (keep_entries(made)) return made;
  std::map<std::string, std::string> texts = texts_of(made.files);
  texts["config.json"] = model_config.dump();
  const tokenizer::TokenizerFiles of(texts, kWhere);
  std::string missing = "The model came without a tokenizer.";
  for (const char* name : {"vocab.json", "vocab.txt", "merges.txt"}) {
    if (!texts.contains(name)) continue;
    missing = std::string("The model's tokenizer is left out: it has ") + name + " and no tokenizer.json.";
  }
  try {
    if (const std::optional<std::string> name = of.tokens()) {
      const Json config = of.config();
      const std::string key = facts.at("general.architecture").as_string() + ".vocab_size";
      GgufTokenizerMetadata metadata = gguf_tokenizer_metadata(
          tokenizer::tokenizer_json(of, *name), config, chat_template_of(texts, config), facts.at(key).as_integer());
      made.arrays = std::move(metadata.arrays);
      for (const GgufEntry& entry : made.arrays.all()) made.entries.push_back(entry);
      made.facts = std::move(metadata.facts);
      made.notes = std::move(metadata.notes);
      return made;
    }
  } catch (const RuntimeFault& fault) {
    missing = std::string("The model's tokenizer is left out: ") + fault.what();
    log::warning(missing);
  }
  made.facts[kKind] = "none";
  made.notes.push_back("The file has no tokenizer: llama.cpp runs it on numbers of tokens, not on text. " + missing);
  return made;
}

}  // namespace capstan::cli
