#include "core/run/weights_text.hpp"

#include <filesystem>
#include <map>

#include "core/checkpoint/carried_files.hpp"
#include "core/checkpoint/checkpoint.hpp"
#include "core/checkpoint/checkpoint_name.hpp"
#include "core/pretrained/gguf_header.hpp"
#include "core/pretrained/model_source.hpp"
#include "core/text/text_file.hpp"

namespace capstan {
namespace {

using Texts = std::map<std::string, std::string>;

/// Of a model without tokenizer.json its config.json tells how the other files are used.
constexpr const char* kModelConfig = "config.json";

Texts texts_of_checkpoint(const std::string& checkpoint) {
  const CheckpointName name = CheckpointName::parse(checkpoint);
  const auto is_file = [](const CheckpointTensor& tensor) { return tensor.state == kFileState; };
  const std::string tag = tag_of(name);
  const CheckpointContents contents = read_checkpoint(name.dir, tag, is_file);
  Texts texts = texts_of(carried_files_of(contents));
  const Json* configuration = contents.state.find("config");
  const Json* config = configuration != nullptr ? pretrained_config(*configuration) : nullptr;
  if (config != nullptr) texts[kModelConfig] = config->dump();
  return texts;
}

Texts texts_of_path(const std::string& weights) {
  std::error_code error;
  const bool is_folder = std::filesystem::is_directory(weights, error);
  if (!is_folder && !names_gguf(weights)) return {};
  Texts texts = texts_of(read_carried_files(weights));
  const std::filesystem::path config = std::filesystem::path(weights) / kModelConfig;
  if (is_folder && std::filesystem::exists(config, error)) texts[kModelConfig] = read_text_file(config);
  return texts;
}

}  // namespace

std::optional<ModelText> text_of_weights(const std::string& checkpoint, const std::string& weights) {
  const Texts texts = checkpoint.empty() ? texts_of_path(weights) : texts_of_checkpoint(checkpoint);
  const std::string where = "'" + (checkpoint.empty() ? weights : checkpoint) + "'";
  if (!ModelText::has_tokenizer(texts, where)) return std::nullopt;
  return ModelText(texts, where);
}

}  // namespace capstan
