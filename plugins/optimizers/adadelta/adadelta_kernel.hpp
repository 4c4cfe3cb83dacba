#pragma once

#include "plugins/optimizers/common/block.hpp"

namespace capstan::optimizers {

struct AdadeltaNumbers {
  float grad_scale, l2, lr, eps;
  float rho, one_minus_rho;
};

/// States: square_avg, acc_delta.
void adadelta_kernel(const Block& block, const void* numbers);

}  // namespace capstan::optimizers
