#include "plugins/optimizers/onebit/cuda_device.hpp"

#define CAPSTAN_RULES_FOR_DEVICE
#include "capstan/sdk/elements.hpp"
#include "plugins/optimizers/onebit/cuda_kernels.hpp"
#include "plugins/optimizers/onebit/step_rules.hpp"

CAPSTAN_RULES
CAPSTAN_RULE_KERNEL(AdaptiveRule)
CAPSTAN_RULES_END
CAPSTAN_RULE_EXPORT(AdaptiveRule)

namespace capstan::optimizers {

CudaDevice::CudaDevice(const sdk::Host& host) : host_(host), kernels_(cuda_kernels([host] { return host.stream(); })) {}

float* CudaDevice::param(const sdk::Slot& slot) const { return sdk::DeviceSlot(slot).param(); }
float* CudaDevice::floats(const sdk::Slot& slot, std::size_t state) const {
  return sdk::DeviceSlot(slot).floats(state);
}
float* CudaDevice::model_state(const sdk::Step& step, std::size_t state) const {
  return sdk::device_model_state(step, state);
}
DeviceValues CudaDevice::grad(const sdk::Slot& slot) const { return device_values(sdk::DeviceSlot(slot).grad()); }

void CudaDevice::adaptive_update(const sdk::Slots& slots, MomentStates moments,
                                 const std::vector<AdaptiveNumbers>& numbers) {
  std::vector<DeviceUpdate<AdaptiveRule>> updates;
  for (const sdk::Slot raw : slots) {
    const sdk::DeviceSlot slot(raw);
    updates.push_back({block_of(slot, {moments.first, moments.second}), {numbers[slot.group()]}});
  }
  check_launch(launch_AdaptiveRule({updates, host_.stream()}));
  mark_written(slots);
}

}  // namespace capstan::optimizers
