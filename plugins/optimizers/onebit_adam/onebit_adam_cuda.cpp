// For device "cuda".
#include "plugins/optimizers/onebit/cuda_device.hpp"
#include "plugins/optimizers/onebit_adam/onebit_adam.hpp"

namespace capstan::optimizers {
namespace {

using CudaOptimizer = On<OneBitAdam, CudaDevice>;

}  // namespace
}  // namespace capstan::optimizers

CAPSTAN_PLUGIN(&capstan::sdk::optimizer<capstan::optimizers::CudaOptimizer, "OneBitAdam">)
