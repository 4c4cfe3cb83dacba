#include "plugins/optimizers/onebit_lamb/onebit_lamb.hpp"

#include "plugins/optimizers/onebit/host_device.hpp"

namespace capstan::optimizers {
namespace {

using HostOptimizer = On<OneBitLamb, HostDevice>;

}  // namespace
}  // namespace capstan::optimizers

CAPSTAN_PLUGIN(&capstan::sdk::optimizer<capstan::optimizers::HostOptimizer, "OneBitLamb">)
