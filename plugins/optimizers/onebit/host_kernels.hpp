#pragma once

#include <memory>

#include "capstan/sdk/elements/block.hpp"
#include "plugins/optimizers/onebit/kernels.hpp"

namespace capstan::optimizers {

/// In host memory, on LibTorch's threads where there is enough to do. Sums are made over fixed units, in their order.
std::unique_ptr<Kernels> host_kernels();

/// A step that still adapts the second moment, with AdaptiveNumbers. States: exp_avg, exp_avg_sq.
BlockKernel adaptive_kernel();

}  // namespace capstan::optimizers
