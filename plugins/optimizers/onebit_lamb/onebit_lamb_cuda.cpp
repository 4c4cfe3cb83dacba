// For device "cuda".
#include "plugins/optimizers/onebit/cuda_device.hpp"
#include "plugins/optimizers/onebit_lamb/onebit_lamb.hpp"

namespace capstan::optimizers {
namespace {

using CudaOptimizer = On<OneBitLamb, CudaDevice>;

}  // namespace
}  // namespace capstan::optimizers

CAPSTAN_PLUGIN(&capstan::sdk::optimizer<capstan::optimizers::CudaOptimizer, "OneBitLamb">)
