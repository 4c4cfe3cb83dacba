#pragma once

#include "capstan/sdk/elements/block.hpp"
#include "plugins/optimizers/common/moments.hpp"

namespace capstan::elements {

struct MuonAdamNumbers {
  Moments moments;
  float inverse_root;  // of the second moment's bias correction
  float eps;
  float decay;  // rate times decay coefficient
  float rate;   // divided by the first moment's bias correction
};

}  // namespace capstan::elements

namespace capstan::optimizers {

/// AdamW, with MuonAdamNumbers. States: the averages of the gradient and of its square.
BlockKernel muon_adam_kernel();

}  // namespace capstan::optimizers
