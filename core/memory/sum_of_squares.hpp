#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace capstan {

/// The sum of squares of all elements of contiguous CPU tensors (float32, bfloat16, float16), in double precision.
///
/// Summed over fixed blocks in a fixed order, so that the result depends neither on the number of threads nor on how
/// the tensors are bucketed. Not finite exactly when an element is not finite: squares of 32-bit values and their sum
/// fit a double.
double sum_of_squares(const std::vector<const at::Tensor*>& tensors);

/// The blocks in which it is summed.
inline constexpr std::int64_t kSquareBlock = 8192;  // elements: 32 KiB of floats stay in the first-level cache
/// The sum of squares of each block of each tensor, in order; adding them up in this order gives sum_of_squares.
std::vector<double> sums_of_squares(const std::vector<const at::Tensor*>& tensors);

}  // namespace capstan
