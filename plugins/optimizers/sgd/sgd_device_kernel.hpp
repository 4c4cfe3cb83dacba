#pragma once

#include "plugins/optimizers/common/device_block.hpp"
#include "plugins/optimizers/sgd/sgd_kernel.hpp"

namespace capstan::optimizers {

/// With `momentum` the state momentum_buffer, without it none. Null, or why the launch failed.
const char* launch_sgd(const DeviceBlock& block, const SgdNumbers& numbers, bool momentum);

}  // namespace capstan::optimizers
