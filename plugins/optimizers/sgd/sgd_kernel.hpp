#pragma once

#include "plugins/optimizers/common/block.hpp"

namespace capstan::optimizers {

struct SgdNumbers {
  float grad_scale, l2, lr;
  float keep, take;                  // buffer = keep * buffer + take * gradient
  float from_buffer, from_gradient;  // direction = from_buffer * buffer + from_gradient * gradient
};

/// No state, no momentum.
void sgd_kernel(const Block& block, const void* numbers);
/// State: momentum_buffer.
void sgd_momentum_kernel(const Block& block, const void* numbers);

}  // namespace capstan::optimizers
