#include "plugins/optimizers/onebit/cuda_kernels.hpp"
#include "plugins/optimizers/onebit/cuda_launch.cuh"
#include "plugins/optimizers/onebit/rule_kernels.hpp"

namespace capstan::optimizers {

std::unique_ptr<Kernels> cuda_kernels(std::function<void*()> stream) {
  return std::make_unique<RuleKernels<CudaLaunch>>(std::move(stream));
}

const char* launch_adaptive(const std::vector<DeviceUpdate<rules::Adaptive>>& updates, void* stream) {
  return sweep(updates, stream);
}

}  // namespace capstan::optimizers
