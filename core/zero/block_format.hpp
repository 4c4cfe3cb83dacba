#pragma once

#include <cstdint>
#include <vector>

#include "core/zero/partition.hpp"

namespace capstan {

/// How a run of elements is quantised: blocks of `block` elements from its beginning on, the last perhaps shorter, with
/// one float32 scale each and codes of `bits` bits; two codes of 4 bits share a byte, the first in its low half.
struct BlockFormat {
  int bits = 8;  // 8 or 4
  std::int64_t numel = 0, block = 0;

  std::int64_t blocks() const { return numel == 0 ? 0 : (numel + block - 1) / block; }
  std::int64_t code_bytes() const { return bits == 8 ? numel : (numel + 1) / 2; }
  /// Bytes of scales and codes together, rounded up so that one message may follow another.
  std::int64_t message_bytes() const { return 4 * blocks() + (code_bytes() + 3) / 4 * 4; }
};

/// The most elements of a gradient's block.
inline constexpr std::int64_t kLargestGradientBlock = 8192;

/// ZeRO++'s format of a parameter of n elements, or of the part of it that one rank has (zero_quantized_weights): as
/// many blocks G as needed for at most 8000 elements each, n being a multiple of 8 G. `block` is 0 where n is not a
/// multiple of 8: such a part travels as it is.
BlockFormat weight_format(std::int64_t n);

/// Elements of a block of a gradient of that shape, or 0 where it travels as it is (fewer than two dimensions). ZeRO++
/// (zero_quantized_gradients) makes max(rows, columns, ranks) blocks.
///
/// Parts of a partition are not whole tensors, so a block is counted from the part's beginning and rounded up to whole
/// vectors, and parts of any size can be quantised: there is no exception for tensors that 2 W does not divide.
std::int64_t gradient_block(const std::vector<std::int64_t>& shape, int ranks);

/// A run of a bucket's elements that travels in one way: `block` 0, as it is.
struct GradientRange {
  std::int64_t numel = 0, block = 0;
};

/// What each rank's part of a bucket consists of. `shapes[i]`: of the partition's parameter i. The gap that aligns the
/// next parameter belongs to the range before it, so gaps must hold zeros.
std::vector<std::vector<GradientRange>> gradient_ranges(const Partition& partition, std::size_t bucket,
                                                        const std::vector<std::vector<std::int64_t>>& shapes);

}  // namespace capstan
