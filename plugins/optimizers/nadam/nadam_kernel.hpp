#pragma once

#include "plugins/optimizers/common/block.hpp"
#include "plugins/optimizers/common/moments.hpp"

namespace capstan::optimizers {

struct NadamNumbers {
  Moments moments;
  float eps;
  float decay;            // lr * weight_decay where the decay is decoupled
  float grad_rate;        // lr * (1 - mu_t) / (1 - product of mu up to t)
  float moment_rate;      // lr * mu_t+1 / (1 - product of mu up to t+1)
  float inverse_sqrt_c2;  // 1 / sqrt(1 - beta2^t)
};

/// States: exp_avg, exp_avg_sq.
void nadam_kernel(const Block& block, const void* numbers);

}  // namespace capstan::optimizers
