// SGD for device "cuda".
#include "plugins/optimizers/common/device_slot.hpp"
#include "plugins/optimizers/sgd/sgd_device_kernel.hpp"
#include "plugins/optimizers/sgd/sgd_settings.hpp"

namespace capstan::optimizers {
namespace {

class SGD {
 public:
  SGD(const sdk::Host& host, const sdk::Params& params) : host_(host) { check_sgd(params); }

  void update(const sdk::Slots& slots, const sdk::Step& step) const {
    const auto groups = step.each_group(&read_sgd);
    SgdUpdates plain, with_momentum;
    for (const sdk::Slot raw : slots) {
      const sdk::DeviceSlot slot(raw);
      const SgdGroup& group = groups[slot.group()];
      const bool momentum = group.momentum != 0;
      const bool first = momentum && ++slot.counter(kStep) == 1;
      const SgdNumbers numbers = sgd_numbers(group, first, step.grad_scale());
      if (momentum) {
        with_momentum.push_back({block_of(slot, {kMomentumBuffer}), numbers});
      } else {
        plain.push_back({block_of(slot, {}), numbers});
      }
    }
    check_launch(launch_sgd(plain, false, host_.stream()));
    check_launch(launch_sgd(with_momentum, true, host_.stream()));
    mark_written(slots);
  }

 private:
  sdk::Host host_;
};

}  // namespace
}  // namespace capstan::optimizers

CAPSTAN_PLUGIN(&capstan::sdk::optimizer<capstan::optimizers::SGD, "SGD">)
