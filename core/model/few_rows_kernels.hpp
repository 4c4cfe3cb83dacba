#pragma once

#include <cstddef>
#include <cstdint>

namespace capstan {

/// How the elements of a weight are stored.
enum class WeightType { kFloat, kBFloat16, kHalf };

/// Rows times the transpose of a weight, all row-major: out[r][o] = sum of input[r][i] * weight[o][i].
struct RowsTimesWeight {
  const float* input;  // [rows, width]
  const void* weight;  // [outputs, width]
  WeightType type;
  float* out;  // [rows, outputs]
  std::int64_t rows, width, outputs;
};

/// Computes outputs [begin, end) of all rows, in float32. Each number is added up in one order, however many rows and
/// outputs are computed beside it. Any thread.
void multiply_rows(const RowsTimesWeight& call, std::int64_t begin, std::int64_t end);

}  // namespace capstan
