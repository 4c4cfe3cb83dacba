#pragma once

#include "plugins/optimizers/common/block.hpp"
#include "plugins/optimizers/common/moments.hpp"

namespace capstan::optimizers {

struct RadamNumbers {
  Moments moments;
  float eps;
  float decay;  // lr * weight_decay where the decay is decoupled
  float rate;   // lr / (1 - beta1^t), times sqrt(1 - beta2^t) and the rectification where the variance is tractable
};

/// States: exp_avg, exp_avg_sq. While the variance is not tractable: momentum alone moves the weights.
void radam_momentum_kernel(const Block& block, const void* numbers);
/// The same with the second moment.
void radam_kernel(const Block& block, const void* numbers);

}  // namespace capstan::optimizers
