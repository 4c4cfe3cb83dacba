// Signum for device "cuda". The kernel is apart: nvcc sees plain C++, this file the SDK.
#include <capstan/sdk/device.hpp>

#include "signum_kernel.hpp"

namespace {

namespace sdk = capstan::sdk;

signum::GradientType type_of(const sdk::Values& values) {
  if (values.dtype == sdk::Dtype::kBFloat16) return signum::GradientType::kBFloat16;
  if (values.dtype == sdk::Dtype::kFloat16) return signum::GradientType::kFloat16;
  return signum::GradientType::kFloat32;
}

class Signum {
 public:
  Signum(const sdk::Host& host, const sdk::Params&) : host_(host) {}

  void update(const sdk::Slots& slots, const sdk::Step& step) {
    const auto numbers = step.each_group([&](const sdk::Group& group) {
      return signum::Numbers{static_cast<float>(group.number("lr")), static_cast<float>(group.number("momentum")),
                             static_cast<float>(group.number("weight_decay")), static_cast<float>(step.grad_scale())};
    });
    for (const sdk::Slot slot : slots) {
      const sdk::DeviceSlot device(slot);
      const sdk::Values gradients = device.grad();
      const char* fault = signum::launch(device.param(), static_cast<float*>(device.state(0).data), gradients.data,
                                         type_of(gradients), device.numel(), numbers[device.group()], host_.stream());
      if (fault) device.fail(fault);
    }
  }

 private:
  sdk::Host host_;
};

}  // namespace

CAPSTAN_PLUGIN(&capstan::sdk::optimizer<Signum, "Signum">)
