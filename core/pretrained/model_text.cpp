#include "core/pretrained/model_text.hpp"

#include <string_view>
#include <utility>

#include "capstan/sdk/mapped_file.hpp"
#include "core/errors.hpp"
#include "core/pretrained/gguf_header.hpp"
#include "core/pretrained/gguf_tokenizer.hpp"
#include "core/text/text_file.hpp"
#include "core/text/tokenizer/tokenizer_files.hpp"

namespace capstan {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfig = "tokenizer_config.json";
constexpr const char* kTemplate = "chat_template.jinja";
constexpr const char* kGguf = "metadata.gguf";

GgufHeader header_of(std::string_view bytes, const std::string& where) {
  return parse_gguf(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size(), where);
}

}  // namespace

struct ModelText::Parts {
  std::string where;
  tokenizer::Tokenizer tokenizer;
  Json config = Json::object();
  std::optional<std::string> chat_template;
  std::optional<fs::path> folder;

  static Parts of_gguf(std::string_view bytes, const std::string& where) {
    GgufTokenizer found = tokenizer_of_gguf(header_of(bytes, where), where);
    return {where, tokenizer::Tokenizer(found.tokenizer, where), std::move(found.config)};
  }

  static Parts of_path(const fs::path& path) {
    if (names_gguf(path)) {
      try {
        const sdk::MappedFile file(path);
        return of_gguf({reinterpret_cast<const char*>(file.data()), file.size()}, path.string());
      } catch (const sdk::Error& error) {
        throw RuntimeFault(error.what());
      }
    }
    Parts parts{path.string(), tokenizer::Tokenizer(path)};
    parts.folder = parts.tokenizer.file().parent_path();
    const fs::path config = *parts.folder / kConfig;
    std::error_code error;
    if (fs::exists(config, error)) parts.config = parse_json_text(read_text_file(config), config.string());
    return parts;
  }

  static Parts of_files(const std::map<std::string, std::string>& files, const std::string& where) {
    const tokenizer::TokenizerFiles of(files, where);
    const std::optional<std::string> name = of.tokens();
    if (!name) return of_gguf(files.at(kGguf), where);
    Parts parts{where, tokenizer::Tokenizer(tokenizer::tokenizer_json(of, *name), of.place(*name))};
    if (const auto config = files.find(kConfig); config != files.end()) {
      parts.config = parse_json_text(config->second, where + ": " + kConfig);
    }
    if (const auto text = files.find(kTemplate); text != files.end()) parts.chat_template = text->second;
    return parts;
  }
};

ModelText::ModelText(Parts parts)
    : where_(std::move(parts.where)),
      tokenizer_(std::move(parts.tokenizer)),
      config_(std::move(parts.config)),
      chat_template_(std::move(parts.chat_template)),
      folder_(std::move(parts.folder)) {}
ModelText::ModelText(const fs::path& path) : ModelText(Parts::of_path(path)) {}
ModelText::ModelText(const std::map<std::string, std::string>& files, const std::string& where)
    : ModelText(Parts::of_files(files, where)) {}

bool ModelText::has_tokenizer(const std::map<std::string, std::string>& files, const std::string& where) {
  if (tokenizer::TokenizerFiles(files, where).tokens()) return true;
  const auto found = files.find(kGguf);
  return found != files.end() && capstan::has_tokenizer(header_of(found->second, where));
}

std::optional<std::string> ModelText::end_token() const {
  const Json* token = config_.find("eos_token");
  if (token != nullptr && token->is_object()) token = token->find("content");
  return token != nullptr && token->is_string() ? std::optional(token->as_string()) : std::nullopt;
}

std::string ModelText::config_name() const { return folder_ ? (*folder_ / kConfig).string() : where_ + ": " + kConfig; }

text_template::ChatTemplate ModelText::chat_template(const fs::path& file) const {
  if (folder_) return text_template::ChatTemplate(*folder_, file);
  return {config_, file.empty() ? chat_template_ : std::optional(read_text_file(file)), where_};
}

}  // namespace capstan
