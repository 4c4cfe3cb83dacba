#pragma once

#include "plugins/optimizers/common/block.hpp"

namespace capstan::optimizers {

struct RpropNumbers {
  float grad_scale;
  float eta_minus, eta_plus;
  float least, greatest;  // step sizes
  float keep, start;      // the size before an update is keep * size + start
};

/// States: prev, step_size.
void rprop_kernel(const Block& block, const void* numbers);

}  // namespace capstan::optimizers
