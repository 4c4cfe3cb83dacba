#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/checkpoint/safetensors.hpp"
#include "core/pretrained/gguf_header.hpp"
#include "core/text/json.hpp"

namespace capstan {

struct GgufTensor {
  GgufType type;
  std::vector<std::int64_t> shape;  // as here: the last dimension is contiguous
  SafetensorsEntry data;            // its name, and its bytes: of a quantised type as uint8
};

/// The type of values that are not quantised. Throws RuntimeFault naming `tensor` for a dtype that GGUF files lack.
GgufType gguf_type(at::ScalarType dtype, const std::string& tensor);

/// Writes a GGUF file (version 3, https://github.com/ggml-org/ggml/blob/master/docs/gguf.md) and syncs it. `metadata`:
/// an object of whole numbers (written as uint32), numbers (float32), texts and booleans. `entries`: metadata of
/// another file, which are written as they are, but for those whose keys `metadata` has. Returns the file's bytes.
/// Throws what the tensors' readers throw, and RuntimeFault naming the path and the reason; a partial file is removed.
std::uint64_t write_gguf(const std::filesystem::path& file, const Json& metadata,
                         const std::vector<GgufTensor>& tensors, const std::vector<GgufEntry>& entries = {});

/// The bytes of a GGUF file that holds these metadata and no tensor.
std::string gguf_metadata_file(const std::vector<GgufEntry>& entries);

}  // namespace capstan
