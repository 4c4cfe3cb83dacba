#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/checkpoint/read_values.hpp"
#include "core/data/mapped_file.hpp"
#include "core/text/json.hpp"

namespace capstan {

/// A tensor in a safetensors file: name, and values of any dense dtype (float32, bfloat16, float16, float64, ints,
/// bool).
struct SafetensorsEntry {
  std::string name;
  at::Tensor values;
  ReadValues read = nullptr;  // to write only. Set: `values` is on the meta device and tells dtype and shape alone
};

/// Where a tensor's bytes went.
struct SafetensorsPlace {
  std::uint64_t begin = 0, end = 0;  // in the file
  std::uint64_t xxh3 = 0;            // XXH3-64 of the bytes
};

/// What was written.
struct SafetensorsWritten {
  SafetensorsPlace header;  // length, JSON and padding
  std::map<std::string, SafetensorsPlace> tensors;
  std::uint64_t bytes = 0;  // the size of the file
};

/// Writes the file (https://github.com/huggingface/safetensors: 8-byte header length, JSON header, raw data) and syncs
/// it. The data start at a multiple of 64 and have no holes, as the format demands; larger elements come first, so
/// that every tensor is aligned to its element. A tensor that is not contiguous or not on the CPU is copied, one at a
/// time. Of an entry with `read` at most 16 MiB are asked for at a time, entry after entry in the file's order. Throws
/// what `read` throws, and RuntimeFault naming the path and the system's reason; a partial file is removed.
SafetensorsWritten write_safetensors(const std::filesystem::path& file, const std::vector<SafetensorsEntry>& entries,
                                     const Json& metadata = Json::object());

/// Where a header says that a tensor stands.
struct SafetensorsHeaderEntry {
  std::string name;
  at::ScalarType type;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0, end = 0;  // in the file
};

/// Checks all of a file's header: lengths, dtypes, shapes, and that the tensors cover the data without hole or overlap.
/// Throws RuntimeFault: `where`, then the defect.
std::vector<SafetensorsHeaderEntry> parse_safetensors_header(const std::byte* bytes, std::uint64_t size,
                                                             const std::string& where);

/// Maps the file; every offset is checked against the file's size. Throws RuntimeFault naming path and defect.
/// The tensors, in the file's order, keep the mapping alive. They are to be read only, a clone is to be written: an
/// operator that would write one throws c10::Error, and so does data_ptr(), in place of const_data_ptr(). One whose
/// bytes are not aligned to its elements is copied.
std::vector<SafetensorsEntry> read_safetensors(const std::filesystem::path& file);

/// The tensor of a header's entry in a mapped file, to be read only, as those of read_safetensors().
at::Tensor mapped_tensor(const std::shared_ptr<const MappedFile>& file, const SafetensorsHeaderEntry& entry);

}  // namespace capstan
