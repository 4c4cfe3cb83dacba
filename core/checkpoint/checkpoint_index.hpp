#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace capstan {

/// One file of tensors.
struct IndexedFile {
  std::string name;
  std::uint64_t bytes = 0;
  std::uint64_t header_bytes = 0, header_xxh3 = 0;
};

/// A tensor, or a range of one, and where it stands.
struct IndexedTensor {
  std::string parameter, state;
  at::ScalarType type = at::kFloat;
  std::vector<std::int64_t> shape;  // the shape of the whole tensor
  std::int64_t offset = 0, numel = 0;
  std::string file, name;            // the name in the safetensors file
  std::uint64_t begin = 0, end = 0;  // bytes in the file
  std::uint64_t xxh3 = 0;
};

/// index.json: what a checkpoint consists of, each byte of it under a checksum, its own included.
struct CheckpointIndex {
  std::string tag;
  std::uint64_t state_bytes = 0, state_xxh3 = 0;  // size and checksum of state.json
  std::vector<IndexedFile> files;
  std::vector<IndexedTensor> tensors;
};

/// Elements of a tensor of that shape.
std::int64_t elements_of(const std::vector<std::int64_t>& shape);

std::string index_text(const CheckpointIndex& index);

/// The index of one rank's file, which need not hold whole tensors. Throws like parse_index.
CheckpointIndex parse_index_part(std::string_view text, const std::string& where);

/// Throws RuntimeFault: `where`, then the defect: the text's own checksum, its version, a member that is missing or
/// of the wrong kind, ranges beyond a tensor, ranges that leave a gap or overlap.
CheckpointIndex parse_index(std::string_view text, const std::string& where);

/// Throws RuntimeFault: `where`, then the defect: a tensor whose ranges leave a gap, overlap, or disagree about it.
void check_ranges(const std::vector<IndexedTensor>& tensors, const std::string& where);

}  // namespace capstan
