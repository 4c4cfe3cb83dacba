#include "plugins/optimizers/common/device_sweep.cuh"
#include "plugins/optimizers/sgd/sgd_device_kernel.hpp"
#include "plugins/optimizers/sgd/sgd_rule.hpp"

namespace capstan::optimizers {

const char* launch_sgd(const SgdUpdates& updates, bool momentum, void* stream) {
  return momentum ? sweep<1, SgdMomentumRule>(updates, stream) : sweep<0, SgdRule>(updates, stream);
}

}  // namespace capstan::optimizers
