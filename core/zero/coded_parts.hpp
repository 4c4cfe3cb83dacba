#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "core/zero/partition.hpp"

namespace capstan {

/// How values that are few multiples of a scale travel between ranks: as codes of few bits with the scales, from which
/// the very values are made again. value = (code - zero point) * scale, rounded once in fp32.
struct CodeFormat {
  std::int64_t group_size = 0;  // elements of the flattened parameter that share a scale
  int bits = 0;                 // of the codes, 1 to 8
  bool zero_points = false;     // groups have one, which else is 0

  /// Whether values of a type still tell their codes: those of 16 bits do while there are no zero points.
  bool fits(at::ScalarType type) const { return type == at::kFloat || !zero_points; }
  /// Bytes that the elements of a range take.
  std::int64_t bytes(const Range& range) const;
  /// Those of them that are scales and zero points.
  std::int64_t scale_bytes(const Range& range) const { return groups_in(range) * (zero_points ? 8 : 4); }

  std::int64_t groups_in(const Range& range) const;
  int width() const;  // bits that a code takes: 2, 4 or 8
};

/// What this rank needs to make codes of its part: one scale, and zero point, a group that the part meets.
struct PartScales {
  CodeFormat format;
  at::Tensor scales, zero_points;  // float32; int32, where the format has them
};

/// The codes of a part, bytes on the device of `values`, which holds the part's elements, one dimension, contiguous,
/// each a multiple of its group's scale. By the operator capstan::encode_part.
at::Tensor encode_part(const PartScales& scales, const Range& part, const at::Tensor& values);
/// Fills `values`, contiguous, of float32, bfloat16 or float16, with what the codes of a part, on the same device,
/// stand for. By the operator capstan::decode_part.
void decode_part(const CodeFormat& format, const Range& part, const at::Tensor& codes, const at::Tensor& values);

}  // namespace capstan
