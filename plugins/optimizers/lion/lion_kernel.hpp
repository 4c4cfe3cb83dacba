#pragma once

#include "plugins/optimizers/common/block.hpp"
#include "plugins/optimizers/common/moments.hpp"

namespace capstan::optimizers {

struct LionNumbers {
  Moments moments;
  float lr, decay;
};

/// State: exp_avg.
void lion_kernel(const Block& block, const void* numbers);

}  // namespace capstan::optimizers
