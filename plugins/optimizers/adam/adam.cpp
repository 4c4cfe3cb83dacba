#include "plugins/optimizers/adam/adam_settings.hpp"
#include "plugins/optimizers/common/elementwise.hpp"
#include "plugins/optimizers/common/step_numbers.hpp"

namespace capstan::optimizers {
namespace {

class Adam {
 public:
  Adam(const sdk::Host&, const sdk::Params& params, bool always_decoupled) : settings_(params, always_decoupled) {}

  void update(const sdk::Slots& slots, const sdk::Step& step) const {
    const auto groups = step.each_group([&](const sdk::Group& group) { return settings_.read(group); });
    ElementwiseUpdate update(slots.size());
    StepNumbers<AdamNumbers> numbers;
    for (const sdk::Slot slot : slots) {
      const AdamGroup& group = groups[slot.group()];
      const std::int64_t t = ++slot.counter(kStep);
      const AdamNumbers& now =
          numbers.get(slot.group(), t, [&] { return settings_.numbers_at(group, t, step.grad_scale()); });
      if (group.amsgrad) {
        update.add(slot, {kExpAvg, kExpAvgSq, kMaxExpAvgSq}, &amsgrad_kernel, &now);
      } else {
        update.add(slot, {kExpAvg, kExpAvgSq}, &adam_kernel, &now);
      }
    }
    update.run();
  }

 private:
  AdamSettings settings_;
};

using Types = AdamTypes<Adam>;

}  // namespace
}  // namespace capstan::optimizers

CAPSTAN_PLUGIN(&capstan::sdk::optimizer<capstan::optimizers::Types::Plain, "Adam">,
               &capstan::sdk::optimizer<capstan::optimizers::Types::W, "AdamW">)
