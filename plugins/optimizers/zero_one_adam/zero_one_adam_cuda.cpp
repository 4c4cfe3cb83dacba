// For device "cuda".
#include "plugins/optimizers/onebit/cuda_device.hpp"
#include "plugins/optimizers/zero_one_adam/zero_one_adam.hpp"

namespace capstan::optimizers {
namespace {

using CudaOptimizer = On<ZeroOneAdam, CudaDevice>;

}  // namespace
}  // namespace capstan::optimizers

CAPSTAN_PLUGIN(&capstan::sdk::optimizer<capstan::optimizers::CudaOptimizer, "ZeroOneAdam">)
