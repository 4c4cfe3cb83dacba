#pragma once

#include <cstddef>
#include <cstdint>

namespace capstan::elements {

inline constexpr std::size_t kMaxStates = 3;

/// A run of elements of one slot: what a kernel sees, in fp32 but for bfloat16 gradients and compute copies, which the
/// shared vector loop reads and writes on the way.
struct Block {
  float* param;
  const void* grad;  // as the slot has it: a kernel multiplies by the step's scale
  bool grad_is_bf16;
  std::uint16_t* copy;  // gets the new values as bfloat16; null: no copy
  bool stream_copy;     // past the caches, where it stands at a cache line's start
  float* state[kMaxStates];
  std::size_t count;
  double* sums = nullptr;  // what a measuring kernel adds to; it changes nothing else
};

/// Updates a block. `numbers` are the optimizer's own, of the block's group and step.
using BlockKernel = void (*)(const Block& block, const void* numbers);

}  // namespace capstan::elements
