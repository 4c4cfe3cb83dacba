#pragma once

#include <cstddef>

namespace capstan::optimizers {

inline constexpr std::size_t kMaxStates = 3;

/// A run of elements of one slot, all in fp32: what a kernel sees.
struct Block {
  float* param;
  const float* grad;  // as the slot has it: a kernel multiplies by the step's scale
  float* state[kMaxStates];
  std::size_t count;
  double* sums = nullptr;  // what a measuring kernel adds to; it changes nothing else
};

/// Updates a block. `numbers` are the optimizer's own, of the block's group and step.
using BlockKernel = void (*)(const Block& block, const void* numbers);

}  // namespace capstan::optimizers
