#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "core/config/json.hpp"

namespace capstan {

/// A tensor in a safetensors file: name, and values of any dense dtype (float32, bfloat16, float16, float64, ints, bool).
struct SafetensorsEntry {
  std::string name;
  at::Tensor values;  // contiguous, CPU
};

/// Where a tensor's bytes went.
struct SafetensorsPlace {
  std::uint64_t begin = 0, end = 0;  // in the file
  std::uint64_t xxh3 = 0;            // XXH3-64 of the bytes
};

/// Writes the file (https://github.com/huggingface/safetensors: 8-byte header length, JSON header, raw data), data
/// aligned to 64 bytes, and syncs it. Throws RuntimeFault naming the path and the system's reason; a partial file is
/// removed.
std::map<std::string, SafetensorsPlace> write_safetensors(const std::filesystem::path& file,
                                                          const std::vector<SafetensorsEntry>& entries,
                                                          const Json& metadata = Json::object());

/// Maps the file; every offset is checked against the file's size. Throws RuntimeFault naming path and defect.
/// The tensors keep the mapping alive and are read-only by convention: copy before writing.
std::vector<SafetensorsEntry> read_safetensors(const std::filesystem::path& file);

}  // namespace capstan
