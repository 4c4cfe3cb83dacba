#pragma once

#include <memory>

#include "capstan/sdk/elements/device_slot.hpp"
#include "plugins/optimizers/onebit/device.hpp"
#include "plugins/optimizers/onebit/host_kernels.hpp"

namespace capstan::optimizers {

class HostDevice : public Device {
 public:
  explicit HostDevice(std::unique_ptr<Kernels> kernels = host_kernels()) : kernels_(std::move(kernels)) {}
  /// As a component's plugin makes it.
  explicit HostDevice(const sdk::Host&) : HostDevice() {}

  sdk::Place place() const override { return sdk::Place::kHost; }
  Kernels& kernels() override { return *kernels_; }
  float* param(const sdk::Slot& slot) const override { return slot.param(); }
  float* floats(const sdk::Slot& slot, std::size_t state) const override { return slot.floats(state); }
  float* model_state(const sdk::Step& step, std::size_t state) const override { return step.model_state(state); }
  DeviceValues grad(const sdk::Slot& slot) const override { return device_values(slot.grad()); }
  void adaptive_update(const sdk::Slots& slots, MomentStates moments,
                       const std::vector<AdaptiveNumbers>& numbers) override;

 private:
  std::unique_ptr<Kernels> kernels_;
};

}  // namespace capstan::optimizers
