#define CAPSTAN_RULES_ON_DEVICE
#include "capstan/sdk/elements.hpp"
#include "plugins/optimizers/onebit/cuda_kernels.hpp"
#include "plugins/optimizers/onebit/cuda_launch.cuh"
#include "plugins/optimizers/onebit/rule_kernels.hpp"

CAPSTAN_RULES
CAPSTAN_RULE_KERNEL(AdaptiveRule)
CAPSTAN_RULES_END

namespace capstan::optimizers {

std::unique_ptr<Kernels> cuda_kernels(std::function<void*()> stream) {
  return std::make_unique<RuleKernels<CudaLaunch>>(std::move(stream));
}

}  // namespace capstan::optimizers
