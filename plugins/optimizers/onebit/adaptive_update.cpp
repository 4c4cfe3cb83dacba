#include "plugins/optimizers/onebit/adaptive_update.hpp"

#include "plugins/optimizers/common/elementwise.hpp"

namespace capstan::optimizers {

void adaptive_update(const sdk::Slots& slots, MomentStates moments, const sdk::Step& step,
                     const std::vector<OneBitGroup>& groups) {
  std::vector<AdaptiveNumbers> numbers;
  for (const OneBitGroup& group : groups) numbers.push_back(group.numbers(step.grad_scale()));
  ElementwiseUpdate update(slots.size());
  for (const sdk::Slot slot : slots) {
    update.add(slot, {moments.first, moments.second}, &adaptive_kernel, &numbers[slot.group()]);
  }
  update.run();
}

}  // namespace capstan::optimizers
