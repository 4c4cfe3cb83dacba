// Adam and AdamW for device "cuda".
#include "plugins/optimizers/adam/adam_device_kernel.hpp"
#include "plugins/optimizers/adam/adam_settings.hpp"
#include "plugins/optimizers/common/device_slot.hpp"
#include "plugins/optimizers/common/step_numbers.hpp"

namespace capstan::optimizers {
namespace {

class Adam {
 public:
  Adam(const sdk::Host& host, const sdk::Params& params, bool always_decoupled)
      : host_(host), settings_(params, always_decoupled) {}

  void update(const sdk::Slots& slots, const sdk::Step& step) const {
    const auto groups = step.each_group([&](const sdk::Group& group) { return settings_.read(group); });
    StepNumbers<AdamNumbers> numbers;
    AdamUpdates plain, amsgrad;
    for (const sdk::Slot raw : slots) {
      const sdk::DeviceSlot slot(raw);
      const AdamGroup& group = groups[slot.group()];
      const std::int64_t t = ++slot.counter(kStep);
      const AdamNumbers& now =
          numbers.get(slot.group(), t, [&] { return settings_.numbers_at(group, t, step.grad_scale()); });
      if (group.amsgrad) {
        amsgrad.push_back({block_of(slot, {kExpAvg, kExpAvgSq, kMaxExpAvgSq}), now});
      } else {
        plain.push_back({block_of(slot, {kExpAvg, kExpAvgSq}), now});
      }
    }
    check_launch(launch_adam(plain, false, host_.stream()));
    check_launch(launch_adam(amsgrad, true, host_.stream()));
    mark_written(slots);
  }

 private:
  sdk::Host host_;
  AdamSettings settings_;
};

using Types = AdamTypes<Adam>;

}  // namespace
}  // namespace capstan::optimizers

CAPSTAN_PLUGIN(&capstan::sdk::optimizer<capstan::optimizers::Types::Plain, "Adam">,
               &capstan::sdk::optimizer<capstan::optimizers::Types::W, "AdamW">)
