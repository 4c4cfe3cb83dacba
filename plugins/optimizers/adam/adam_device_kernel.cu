#include "plugins/optimizers/adam/adam_device_kernel.hpp"
#include "plugins/optimizers/adam/adam_rule.hpp"
#include "plugins/optimizers/common/device_sweep.cuh"

namespace capstan::optimizers {

const char* launch_adam(const DeviceBlock& block, const AdamNumbers& numbers, bool amsgrad) {
  return amsgrad ? sweep<3>(block, AdamRule<true>{numbers}) : sweep<2>(block, AdamRule<false>{numbers});
}

}  // namespace capstan::optimizers
