#pragma once

#include "plugins/optimizers/common/block.hpp"

namespace capstan::optimizers {

struct AsgdNumbers {
  float grad_scale, l2;
  float eta;     // rate of this update
  float shrink;  // 1 - lambd * eta
  float mu;      // share of the new weights in their average
};

/// State: ax, the average of the weights.
void asgd_kernel(const Block& block, const void* numbers);

}  // namespace capstan::optimizers
