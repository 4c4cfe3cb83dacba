#pragma once

#include <vector>

#include "plugins/optimizers/adam/adam_kernel.hpp"
#include "plugins/optimizers/common/device_block.hpp"

namespace capstan::optimizers {

using AdamUpdates = std::vector<DeviceUpdate<AdamNumbers>>;

/// States: exp_avg, exp_avg_sq, with `amsgrad` max_exp_avg_sq. `stream` is a cudaStream_t. Null, or why a launch
/// failed.
const char* launch_adam(const AdamUpdates& updates, bool amsgrad, void* stream);

}  // namespace capstan::optimizers
