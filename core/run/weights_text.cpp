#include "core/run/weights_text.hpp"

#include <filesystem>
#include <map>

#include "core/checkpoint/carried_files.hpp"
#include "core/checkpoint/checkpoint.hpp"
#include "core/checkpoint/checkpoint_name.hpp"
#include "core/pretrained/gguf_header.hpp"

namespace capstan {
namespace {

CarriedFiles files_of_checkpoint(const std::string& checkpoint) {
  const CheckpointName name = CheckpointName::parse(checkpoint);
  const auto is_file = [](const CheckpointTensor& tensor) { return tensor.state == kFileState; };
  const std::string tag = tag_of(name);
  const CheckpointContents contents = read_checkpoint(name.dir, tag, is_file);
  return carried_files_of(contents);
}

}  // namespace

std::optional<ModelText> text_of_weights(const std::string& checkpoint, const std::string& weights) {
  CarriedFiles files;
  std::error_code error;
  if (!checkpoint.empty()) {
    files = files_of_checkpoint(checkpoint);
  } else if (std::filesystem::is_directory(weights, error) || names_gguf(weights)) {
    files = read_carried_files(weights);
  }
  std::map<std::string, std::string> texts;
  for (const auto& [name, bytes] : files) {
    texts.emplace(
        name, std::string(static_cast<const char*>(bytes.const_data_ptr()), static_cast<std::size_t>(bytes.numel())));
  }
  const std::string where = "'" + (checkpoint.empty() ? weights : checkpoint) + "'";
  if (!ModelText::has_tokenizer(texts, where)) return std::nullopt;
  return ModelText(texts, where);
}

}  // namespace capstan
