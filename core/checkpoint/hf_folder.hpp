#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/checkpoint/safetensors.hpp"
#include "core/text/json.hpp"

namespace capstan {

/// How a model's weights are called, and lie, in a folder of Hugging Face's transformers. The model says so itself.
struct HfFormat {
  struct Tensor {
    std::string parameter, name;
    std::string otherwise;    // the name that is read where `name` is not there; empty: none
    bool transposed = false;  // a matrix, which lies the other way round there
  };
  std::string model;                    // its name here, for messages
  Json config;                          // the contents of config.json
  std::vector<std::string> must_agree;  // its keys that must be alike in a folder that is read, where it has them
  std::string prefix;                   // begins the names; a file may leave it out of all of them
  std::vector<Tensor> tensors;
  std::vector<std::string> ignored;  // ends of names that hold nothing to be read
  std::string layers_key;            // the key of config.json that counts layers; empty: it is not told
  bool is_part = false;              // a folder that is read may hold other tensors as well
};

/// Reads the "hf" of a model's description. Throws PluginError for one that tells none, or tells it wrong.
HfFormat hf_format(const Json& description, const std::string& model);

/// Writes model.safetensors and config.json into the folder, which is made. `weights` by the model's own names; those
/// without a place there are an error. Throws RuntimeFault.
void write_hf_folder(const std::filesystem::path& folder, const HfFormat& format,
                     const std::vector<SafetensorsEntry>& weights);

/// The weights of a folder, of one file or of several with an index, by the model's own names; mapped from the
/// files, and a matrix that lies the other way round there is a transposed view of them. Throws RuntimeFault when
/// config.json describes another model, or naming tensors that have no place in this one.
std::vector<SafetensorsEntry> read_hf_folder(const std::filesystem::path& folder, const HfFormat& format);
/// The weights of a GGUF file by the model's own names: values of quantised types are float32. They stay in the file,
/// and any range of them may be read. Throws RuntimeFault when the file is of another model, or naming tensors that
/// have no place in this one.
std::vector<SafetensorsEntry> read_gguf_weights(const std::filesystem::path& file, const HfFormat& format);

/// The layers that a folder's config.json counts under format.layers_key; nothing where it has no such number.
std::optional<std::int64_t> hf_layers(const std::filesystem::path& folder, const HfFormat& format);

}  // namespace capstan
