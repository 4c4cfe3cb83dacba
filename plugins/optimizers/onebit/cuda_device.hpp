#pragma once

#include <memory>

#include "plugins/optimizers/onebit/device.hpp"

namespace capstan::optimizers {

/// The GPU that the engine has opened, on the engine's stream.
class CudaDevice final : public Device {
 public:
  explicit CudaDevice(const sdk::Host& host);

  sdk::Place place() const override { return sdk::Place::kCuda; }
  Kernels& kernels() override { return *kernels_; }
  float* param(const sdk::Slot& slot) const override;
  float* floats(const sdk::Slot& slot, std::size_t state) const override;
  float* model_state(const sdk::Step& step, std::size_t state) const override;
  DeviceValues grad(const sdk::Slot& slot) const override;
  void adaptive_update(const sdk::Slots& slots, MomentStates moments,
                       const std::vector<AdaptiveNumbers>& numbers) override;

 private:
  sdk::Host host_;
  std::unique_ptr<Kernels> kernels_;
};

}  // namespace capstan::optimizers
