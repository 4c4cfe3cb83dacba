#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace capstan {

/// Types of metadata values, by their numbers in the file.
enum class GgufValueType : std::uint32_t {
  kUint8,
  kInt8,
  kUint16,
  kInt16,
  kUint32,
  kInt32,
  kFloat32,
  kBool,
  kString,
  kArray,
  kUint64,
  kInt64,
  kFloat64
};

/// A key of the metadata with its value as the file encodes it. The views point into the bytes that were parsed.
struct GgufEntry {
  std::string_view key;
  GgufValueType type = GgufValueType::kUint32;
  std::string_view value;      // without the type in front
  std::uint64_t elements = 0;  // of an array

  /// A whole number, a number or a text; nothing where the value is of another type.
  std::optional<std::int64_t> integer() const;
  std::optional<double> number() const;
  std::optional<std::string_view> text() const;
};

/// Element types of GGUF files, by their numbers there.
enum class GgufType : std::uint32_t { kF32 = 0, kF16 = 1, kQ4_0 = 2, kQ4_1 = 3, kQ8_0 = 8, kBF16 = 30 };

/// Elements of a block, and its bytes.
struct GgufBlock {
  std::uint64_t elements, bytes;
};
GgufBlock block_of(GgufType type);

struct GgufTensorInfo {
  std::string name;
  GgufType type = GgufType::kF32;
  std::vector<std::int64_t> shape;   // as LibTorch has it: the last dimension is contiguous
  std::uint64_t begin = 0, end = 0;  // in the file
  std::size_t part = 0;              // which of a model's files; see gguf_parts.hpp
};

/// The part of a GGUF file in front of the tensors (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md).
struct GgufHeader {
  std::vector<GgufEntry> metadata;
  std::vector<GgufTensorInfo> tensors;

  const GgufEntry* find(std::string_view key) const;
  const GgufTensorInfo* tensor(std::string_view name) const;
};

/// Checks every count, length, type and offset against `size`, the size of the file, whose bytes begin at `bytes`; no
/// more memory is taken than the header itself has. `where` opens messages. Throws RuntimeFault for a file that is cut
/// off, damaged, big-endian, of another version than 2 and 3, or that holds a tensor of a type that GgufType lacks.
GgufHeader parse_gguf(const std::byte* bytes, std::uint64_t size, const std::string& where);

/// Whether a path is that of a GGUF file, by its name.
bool names_gguf(const std::filesystem::path& path);

}  // namespace capstan
