#pragma once

#include "plugins/optimizers/adam/adam_kernel.hpp"
#include "plugins/optimizers/common/device_block.hpp"

namespace capstan::optimizers {

/// States: exp_avg, exp_avg_sq, with `amsgrad` max_exp_avg_sq. Null, or why the launch failed.
const char* launch_adam(const DeviceBlock& block, const AdamNumbers& numbers, bool amsgrad);

}  // namespace capstan::optimizers
