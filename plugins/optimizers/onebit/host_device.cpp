#include "plugins/optimizers/onebit/host_device.hpp"

#include "capstan/sdk/elements/elementwise.hpp"

namespace capstan::optimizers {

void HostDevice::adaptive_update(const sdk::Slots& slots, MomentStates moments,
                                 const std::vector<AdaptiveNumbers>& numbers) {
  ElementwiseUpdate update(slots.size());
  for (const sdk::Slot slot : slots) {
    update.add(slot, {moments.first, moments.second}, adaptive_kernel(), &numbers[slot.group()]);
  }
  update.run();
}

}  // namespace capstan::optimizers
