#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <string>

#include "core/checkpoint/checkpoint.hpp"

namespace capstan {

/// Small files that belong to a model and not to its computation: its tokenizer, chat template and defaults of
/// generation, by name; the bytes as uint8. Of a GGUF file the metadata that are not the model's shape, as a GGUF file
/// without tensors, under kGgufMetadata.
using CarriedFiles = std::map<std::string, at::Tensor>;

inline constexpr const char* kGgufMetadata = "metadata.gguf";

/// The state under which checkpoints hold them, in the place of a parameter's name stands the file's.
inline constexpr const char* kFileState = "file";

/// Reads the files of a folder of transformers or a GGUF file. A file above 64 MiB, or beyond 128 MiB in all, is left
/// out with a warning. Throws RuntimeFault for one that cannot be read.
CarriedFiles read_carried_files(const std::filesystem::path& source);

/// The files that a checkpoint holds. Throws RuntimeFault for a name that no checkpoint takes with it, which could lead
/// out of a folder.
CarriedFiles carried_files_of(const CheckpointContents& contents);

/// Their contents by name.
std::map<std::string, std::string> texts_of(const CarriedFiles& files);

/// Writes them into a folder of transformers, each aside and renamed; in the place of kGgufMetadata a tokenizer.json
/// and tokenizer_config.json, or a warning where the tokenizer cannot be translated. Throws RuntimeFault.
void write_carried_files(const std::filesystem::path& folder, const CarriedFiles& files);

}  // namespace capstan
