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
/// The sums of each block of `block` elements, or of each tensor where that is 0, in order; adding those of
/// kSquareBlock up in this order gives sum_of_squares of tensors in host memory. On a device by the operator
///
///     capstan::sum_of_squares(Tensor[] tensors, int block) -> Tensor
///
/// which returns float64 [blocks, 2], exact and rounded sums, on the device. sum_of_squares() adds the sums of whole
/// tensors up there, which is faster and may differ in the last bit. A plugin may register the operator for its device;
/// else sums_by_operators() computes it.
std::vector<SumOfSquares> sums_of_squares(const std::vector<const at::Tensor*>& tensors,
                                          std::int64_t block = kSquareBlock);
/// The operator by LibTorch's, on any device; the rounded sums are the exact ones.
at::Tensor sums_by_operators(at::TensorList tensors, std::int64_t block);
/// sums_of_squares() of tensors in host memory, until the next call in this thread.
const std::vector<SumOfSquares>& sums_on_host(const std::vector<const at::Tensor*>& tensors, std::int64_t block);

}  // namespace capstan
