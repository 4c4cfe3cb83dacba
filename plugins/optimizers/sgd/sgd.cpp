#include <cstdint>

#include "plugins/optimizers/common/elementwise.hpp"
#include "plugins/optimizers/common/step_numbers.hpp"
#include "plugins/optimizers/sgd/sgd_settings.hpp"

namespace capstan::optimizers {
namespace {

class SGD {
 public:
  SGD(const sdk::Host&, const sdk::Params& params) { check_sgd(params); }

  void update(const sdk::Slots& slots, const sdk::Step& step) const {
    const auto groups = step.each_group(&read_sgd);
    ElementwiseUpdate update(slots.size());
    StepNumbers<SgdNumbers> numbers;
    for (const sdk::Slot slot : slots) {
      const SgdGroup& group = groups[slot.group()];
      // Without momentum nothing is counted: all updates are alike.
      const std::int64_t t = group.momentum == 0 ? 1 : ++slot.counter(kStep);
      const SgdNumbers& now =
          numbers.get(slot.group(), t, [&] { return sgd_numbers(group, t == 1, step.grad_scale()); });
      if (group.momentum == 0) {
        update.add(slot, {}, &sgd_kernel, &now);
      } else {
        update.add(slot, {kMomentumBuffer}, &sgd_momentum_kernel, &now);
      }
    }
    update.run();
  }
};

}  // namespace
}  // namespace capstan::optimizers

CAPSTAN_PLUGIN(&capstan::sdk::optimizer<capstan::optimizers::SGD, "SGD">)
