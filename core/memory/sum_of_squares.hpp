#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace capstan {

/// A sum of squares, in two roundings.
struct SumOfSquares {
  /// The sum in double precision. It is not finite exactly when an element is not finite: squares of 32-bit values and
  /// their sum fit.
  double exact = 0;
  /// Each block in float32, in eight interleaved sums, as LibTorch's norm of a tensor rounds it; blocks are added in
  /// double precision, and a block that float32 cannot hold is exact. Up to 1e-5 from the exact one. Gradients are
  /// clipped by it as the peer clips them: 50 steps of SGD make a difference of 1e-7 in the norm one of 2e-5 in the
  /// weights.
  double rounded = 0;

  SumOfSquares& operator+=(const SumOfSquares& other) {
    exact += other.exact;
    rounded += other.rounded;
    return *this;
  }
};

/// Elements of a tensor that are summed as one block. The float32 sums depend on it: the peer sums a whole tensor in
/// float32 at stage 0 and in double precision at the others, and this is between the two.
inline constexpr std::int64_t kSquareBlock = 32768;

/// The sum of squares of all elements of contiguous tensors (float32, bfloat16, float16) of one device: of fixed blocks
/// in a fixed order, so that it depends neither on the number of threads nor on how the tensors are bucketed.
SumOfSquares sum_of_squares(const std::vector<const at::Tensor*>& tensors);
/// The sums of each block of each tensor, in order; adding them up in this order gives sum_of_squares.
std::vector<SumOfSquares> sums_of_squares(const std::vector<const at::Tensor*>& tensors);
/// The same by LibTorch's operators, on any device; `rounded` is the exact sum.
std::vector<SumOfSquares> sums_of_squares_on_device(const std::vector<const at::Tensor*>& tensors);
/// The sum of all elements by LibTorch's operators, faster than the sums of blocks. It may differ from their sum in its
/// last bit. `rounded` is the exact sum.
SumOfSquares sum_of_squares_on_device(const std::vector<const at::Tensor*>& tensors);

}  // namespace capstan
