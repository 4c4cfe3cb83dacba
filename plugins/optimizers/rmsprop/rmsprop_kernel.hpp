#pragma once

#include "plugins/optimizers/common/block.hpp"

namespace capstan::optimizers {

struct RmspropNumbers {
  float grad_scale, l2, lr, eps;
  float alpha, one_minus_alpha;
  float momentum;
};

/// State: square_avg.
void rmsprop_kernel(const Block& block, const void* numbers);
/// States: square_avg, momentum_buffer.
void rmsprop_momentum_kernel(const Block& block, const void* numbers);
/// States: square_avg, grad_avg.
void rmsprop_centered_kernel(const Block& block, const void* numbers);
/// States: square_avg, grad_avg, momentum_buffer.
void rmsprop_centered_momentum_kernel(const Block& block, const void* numbers);

}  // namespace capstan::optimizers
