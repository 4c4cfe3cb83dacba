#include "plugins/optimizers/adam/adam_device_kernel.hpp"
#include "plugins/optimizers/adam/adam_rule.hpp"
#include "plugins/optimizers/common/device_sweep.cuh"

namespace capstan::optimizers {

const char* launch_adam(const AdamUpdates& updates, bool amsgrad, void* stream) {
  return amsgrad ? sweep<3, AdamRule<true>>(updates, stream) : sweep<2, AdamRule<false>>(updates, stream);
}

}  // namespace capstan::optimizers
