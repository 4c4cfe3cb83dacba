#include "plugins/optimizers/onebit_adam/onebit_adam.hpp"

#include "plugins/optimizers/onebit/host_device.hpp"

namespace capstan::optimizers {
namespace {

using HostOptimizer = On<OneBitAdam, HostDevice>;

}  // namespace
}  // namespace capstan::optimizers

CAPSTAN_PLUGIN(&capstan::sdk::optimizer<capstan::optimizers::HostOptimizer, "OneBitAdam">)
