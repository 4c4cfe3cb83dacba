#include <cstdint>

#include "capstan/sdk/optimizer.hpp"
#include "plugins/optimizers/common/elementwise.hpp"
#include "plugins/optimizers/rmsprop/rmsprop_kernel.hpp"

namespace capstan::optimizers {
namespace {

enum State : std::size_t { kSquareAvg, kGradAvg, kMomentumBuffer };

struct RmspropGroup {
  bool centered, has_momentum;
  RmspropNumbers numbers;
};

class RMSprop {
 public:
  RMSprop(const sdk::Host&, const sdk::Params&) {}

  void update(const sdk::Slots& slots, const sdk::Step& step) const {
    const auto groups = step.each_group([&](const sdk::Group& group) { return read(group, step.grad_scale()); });
    ElementwiseUpdate update(slots.size());
    for (const sdk::Slot slot : slots) {
      const RmspropGroup& group = groups[slot.group()];
      if (group.centered && group.has_momentum) {
        update.add(slot, {kSquareAvg, kGradAvg, kMomentumBuffer}, &rmsprop_centered_momentum_kernel, &group.numbers);
      } else if (group.centered) {
        update.add(slot, {kSquareAvg, kGradAvg}, &rmsprop_centered_kernel, &group.numbers);
      } else if (group.has_momentum) {
        update.add(slot, {kSquareAvg, kMomentumBuffer}, &rmsprop_momentum_kernel, &group.numbers);
      } else {
        update.add(slot, {kSquareAvg}, &rmsprop_kernel, &group.numbers);
      }
    }
    update.run();
  }

 private:
  static RmspropGroup read(const sdk::Group& group, double grad_scale) {
    const double alpha = group.number("alpha"), momentum = group.number("momentum");
    return {group.boolean("centered"),
            momentum != 0,
            {.grad_scale = static_cast<float>(grad_scale),
             .l2 = static_cast<float>(group.number("weight_decay")),
             .lr = static_cast<float>(group.number("lr")),
             .eps = static_cast<float>(group.number("eps")),
             .alpha = static_cast<float>(alpha),
             .one_minus_alpha = static_cast<float>(1.0 - alpha),
             .momentum = static_cast<float>(momentum)}};
  }
};

}  // namespace
}  // namespace capstan::optimizers

CAPSTAN_PLUGIN(&capstan::sdk::optimizer<capstan::optimizers::RMSprop, "RMSprop">)
