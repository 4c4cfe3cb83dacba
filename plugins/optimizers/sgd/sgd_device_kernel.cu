#include "plugins/optimizers/common/device_sweep.cuh"
#include "plugins/optimizers/sgd/sgd_device_kernel.hpp"
#include "plugins/optimizers/sgd/sgd_rule.hpp"

namespace capstan::optimizers {

const char* launch_sgd(const DeviceBlock& block, const SgdNumbers& numbers, bool momentum) {
  return momentum ? sweep<1>(block, SgdMomentumRule{numbers}) : sweep<0>(block, SgdRule{numbers});
}

}  // namespace capstan::optimizers
