#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "core/checkpoint/safetensors.hpp"
#include "core/data/mapped_file.hpp"
#include "core/pretrained/gguf_parts.hpp"
#include "core/text/json.hpp"

namespace capstan {

/// The tensors of a GGUF model, in one file or in parts, under the names that transformers gives them, in its layout.
class GgufWeights {
 public:
  /// Maps the file, and the other parts that it names. Throws RuntimeFault for a damaged one, and for one of a model
  /// that is not known here.
  explicit GgufWeights(const std::filesystem::path& file);

  /// The contents of config.json for this model.
  const Json& config() const { return config_; }
  /// The tensors that transformers calls by these names, and the others of the file under their own names. Values of
  /// quantised types are float32. None is in memory before its elements are read; any range of them may be.
  std::map<std::string, SafetensorsEntry> read(const std::vector<std::string>& names) const;

 private:
  std::string where_;
  GgufFiles<MappedFile> files_;
  Json config_;
};

}  // namespace capstan
