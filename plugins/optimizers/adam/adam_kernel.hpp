#pragma once

#include "plugins/optimizers/common/block.hpp"
#include "plugins/optimizers/common/moments.hpp"

namespace capstan::optimizers {

/// What the kernels need of a group at one step.
struct AdamNumbers {
  Moments moments;
  float lr;
  float eps;
  float decay;            // the decay that stays apart from the gradient
  float inverse_c1;       // 1 / (1 - beta1^t)
  float inverse_sqrt_c2;  // 1 / sqrt(1 - beta2^t)
};

/// States: exp_avg, exp_avg_sq.
void adam_kernel(const Block& block, const void* numbers);
/// States: exp_avg, exp_avg_sq, max_exp_avg_sq.
void amsgrad_kernel(const Block& block, const void* numbers);

}  // namespace capstan::optimizers
