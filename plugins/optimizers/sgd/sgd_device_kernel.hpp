#pragma once

#include <vector>

#include "plugins/optimizers/common/device_block.hpp"
#include "plugins/optimizers/sgd/sgd_kernel.hpp"

namespace capstan::optimizers {

using SgdUpdates = std::vector<DeviceUpdate<SgdNumbers>>;

/// With `momentum` the state momentum_buffer, without it none. `stream` is a cudaStream_t. Null, or why a launch
/// failed.
const char* launch_sgd(const SgdUpdates& updates, bool momentum, void* stream);

}  // namespace capstan::optimizers
