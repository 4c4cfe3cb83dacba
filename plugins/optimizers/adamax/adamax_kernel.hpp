#pragma once

#include "plugins/optimizers/common/block.hpp"
#include "plugins/optimizers/common/moments.hpp"

namespace capstan::optimizers {

struct AdamaxNumbers {
  Moments moments;
  float eps;
  float rate;  // lr / (1 - beta1^t)
};

/// States: exp_avg, exp_inf.
void adamax_kernel(const Block& block, const void* numbers);

}  // namespace capstan::optimizers
