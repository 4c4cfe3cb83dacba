#include <cstdint>

#include "capstan/sdk/optimizer.hpp"
#include "plugins/optimizers/common/elementwise.hpp"
#include "plugins/optimizers/common/step_numbers.hpp"
#include "plugins/optimizers/sgd/sgd_kernel.hpp"

namespace capstan::optimizers {
namespace {

enum State : std::size_t { kMomentumBuffer, kStep };

struct SgdGroup {
  double lr, momentum, dampening, weight_decay;
  bool nesterov;
};

class SGD {
 public:
  SGD(const sdk::Host&, const sdk::Params& params) {
    check_nesterov({0, params.number("momentum"), params.number("dampening"), 0, params.boolean("nesterov")});
  }

  void update(const sdk::Slots& slots, const sdk::Step& step) const {
    const auto groups = step.each_group(&read);
    ElementwiseUpdate update(slots.size());
    StepNumbers<SgdNumbers> numbers;
    for (const sdk::Slot slot : slots) {
      const SgdGroup& group = groups[slot.group()];
      // Without momentum nothing is counted: all updates are alike.
      const std::int64_t t = group.momentum == 0 ? 1 : ++slot.counter(kStep);
      const SgdNumbers& now =
          numbers.get(slot.group(), t, [&] { return numbers_at(group, t == 1, step.grad_scale()); });
      if (group.momentum == 0) {
        update.add(slot, {}, &sgd_kernel, &now);
      } else {
        update.add(slot, {kMomentumBuffer}, &sgd_momentum_kernel, &now);
      }
    }
    update.run();
  }

 private:
  static SgdGroup read(const sdk::Group& group) {
    const SgdGroup numbers{group.number("lr"), group.number("momentum"), group.number("dampening"),
                           group.number("weight_decay"), group.boolean("nesterov")};
    check_nesterov(numbers);
    return numbers;
  }

  static void check_nesterov(const SgdGroup& group) {
    if (!group.nesterov || (group.momentum > 0 && group.dampening == 0)) return;
    throw sdk::Error("nesterov: needs a momentum above 0 and a dampening of 0.");
  }

  static SgdNumbers numbers_at(const SgdGroup& group, bool first, double grad_scale) {
    // The first buffer is the gradient itself, without dampening.
    return {.grad_scale = static_cast<float>(grad_scale),
            .l2 = static_cast<float>(group.weight_decay),
            .lr = static_cast<float>(group.lr),
            .keep = first ? 0.0f : static_cast<float>(group.momentum),
            .take = first ? 1.0f : static_cast<float>(1.0 - group.dampening),
            .from_buffer = group.nesterov ? static_cast<float>(group.momentum) : 1.0f,
            .from_gradient = group.nesterov ? 1.0f : 0.0f};
  }
};

}  // namespace
}  // namespace capstan::optimizers

CAPSTAN_PLUGIN(&capstan::sdk::optimizer<capstan::optimizers::SGD, "SGD">)
