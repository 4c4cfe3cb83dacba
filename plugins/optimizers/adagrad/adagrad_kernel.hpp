#pragma once

#include "plugins/optimizers/common/block.hpp"

namespace capstan::optimizers {

struct AdagradNumbers {
  float grad_scale, l2, lr, eps;
  float initial;  // joins the sum at the first step
};

/// State: exp_avg_sq, here the sum of squares.
void adagrad_kernel(const Block& block, const void* numbers);

}  // namespace capstan::optimizers
