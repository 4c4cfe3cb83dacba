#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "core/compression/compressions.hpp"

namespace capstan {

/// How the groups of a weight lie in its rows. A weight of more than two dimensions has rows of all that follows the
/// first, one of fewer is a single row.
struct RowGroups {
  std::int64_t rows = 0, columns = 0;
  std::int64_t per_row = 0;  // scales a row
  std::int64_t group = 0;    // elements of a group, which may be several rows
  bool whole = false;        // one group is all of the weight
  bool has_zero_points = false;

  /// Elements of a row that have one scale.
  std::int64_t size() const { return columns / per_row; }
};

/// Throws RuntimeFault for groups that end within rows without cutting all of them alike, which no format holds.
RowGroups row_groups(const std::string& parameter, const std::vector<std::int64_t>& shape,
                     const CompressionPlan::Parameter& plan);

/// A weight as codes: value = (code - zero point) * scale.
struct CodedRows {
  int bits = 0;
  bool whole = false;      // all scales are the same one
  at::Tensor codes;        // int8 [rows, columns]
  at::Tensor scales;       // float32 [rows, scales a row]
  at::Tensor zero_points;  // int32, as `scales`

  CodedRows rows(std::int64_t first, std::int64_t count) const;
  /// The rows in another order: int64 [rows].
  CodedRows in_order(const at::Tensor& order) const;
  /// float32 [rows, columns], each rounded once.
  at::Tensor values() const;
};

CodedRows coded_rows(const RowGroups& groups, const WeightCodes& codes);

/// Codes of `bits` bits, each plus 2^(bits - 1), one after the other from the lowest bit of an int32 on: int8
/// [rows, columns] to int32 [rows, ceil(columns * bits / 32)].
at::Tensor packed_words(const at::Tensor& codes, int bits);

/// Blocks of 32 values, as GGUF has them: a scale in float16, then the codes, of 8 bits each (Q8_0, 34 bytes), or of 4
/// bits (Q4_0, 18 bytes), value i beside value i + 16. uint8, one dimension.
at::Tensor gguf_blocks(const CodedRows& rows);

/// A matrix of float32 whose rows are multiples of 32 as 8-bit codes, as llama.cpp rounds to Q8_0
/// (quantize_row_q8_0_ref of ggml-quants.c): the scale of 32 values is their largest magnitude / 127, and halves round
/// away from zero.
CodedRows rounded_to_q8_0(const at::Tensor& matrix);

/// The largest relative change of a scale by its rounding to float16. Infinite where one becomes infinite.
double change_in_float16(const at::Tensor& scales);

}  // namespace capstan
