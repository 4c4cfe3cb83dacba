#include "plugins/optimizers/zero_one_adam/zero_one_adam.hpp"

#include "plugins/optimizers/onebit/host_device.hpp"

namespace capstan::optimizers {
namespace {

using HostOptimizer = On<ZeroOneAdam, HostDevice>;

}  // namespace
}  // namespace capstan::optimizers

CAPSTAN_PLUGIN(&capstan::sdk::optimizer<capstan::optimizers::HostOptimizer, "ZeroOneAdam">)
