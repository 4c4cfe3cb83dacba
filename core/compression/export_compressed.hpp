#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/checkpoint/hf_folder.hpp"
#include "core/compression/compressed_weights.hpp"
#include "core/pretrained/gguf_header.hpp"

namespace capstan {

/// What an export wrote.
struct ExportReport {
  struct Row {
    std::string what;  // "8 bits, groups of 32"
    std::int64_t tensors = 0, elements = 0;
    std::int64_t before = 0, after = 0;  // bytes: as saved, and in the file
  };
  std::vector<Row> rows;
  std::uint64_t file_bytes = 0;
  std::vector<std::string> notes;
};

/// One safetensors file with the model's own names: a weight that has codes as compressed-tensors' "pack-quantized" has
/// it (weight_packed, weight_scale, weight_shape, weight_zero_point), the rest as it is. An older file stays as it was
/// until the new one is whole. Throws RuntimeFault.
ExportReport export_packed(CompressedWeights& weights, const std::filesystem::path& out);

/// The same in a folder of transformers, with its config.json, under the names that the model tells. Throws
/// RuntimeFault.
ExportReport export_packed_hf(CompressedWeights& weights, const NamesElsewhere& names,
                              const std::filesystem::path& out);

/// Contents of a GGUF file beside a model's weights and their names.
struct GgufExtras {
  bool q8_0 = false;                 // matrices without codes become Q8_0 where their rows are multiples of 32
  std::vector<GgufEntry> entries;    // metadata of the file that the model came from
  std::vector<float> rope_divisors;  // rope_divisors()
};

/// A GGUF file under the names that the model tells: codes of 8 bits as Q8_0, of 4 bits in groups of 32 as Q4_0, the
/// rest as it is, vectors as float32. Throws RuntimeFault, before anything is written, for a weight whose codes the
/// format cannot hold.
ExportReport export_gguf(CompressedWeights& weights, const NamesElsewhere& names, const std::filesystem::path& out,
                         const GgufExtras& extras = {});

/// The names of a model of transformers in llama.cpp, with the metadata that its config.json becomes. Throws
/// RuntimeFault for a model type, a key or a weight that GGUF does not have.
NamesElsewhere gguf_names(const HfFormat& format, const Json& config);

}  // namespace capstan
