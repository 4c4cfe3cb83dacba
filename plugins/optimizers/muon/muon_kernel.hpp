#pragma once

#include "capstan/sdk/elements/block.hpp"
#include "plugins/optimizers/common/moments.hpp"

namespace capstan::optimizers {

struct MuonAdamNumbers {
  Moments moments;
  float inverse_root;  // of the second moment's bias correction
  float eps;
  float decay;  // rate times decay coefficient
  float rate;   // divided by the first moment's bias correction
};

/// AdamW. States: the averages of the gradient and of its square.
void muon_adam_kernel(const Block& block, const void* numbers);

}  // namespace capstan::optimizers
