#include <cstdint>

#include "capstan/sdk/optimizer.hpp"
#include "plugins/optimizers/adagrad/adagrad_kernel.hpp"
#include "plugins/optimizers/common/elementwise.hpp"
#include "plugins/optimizers/common/step_numbers.hpp"

namespace capstan::optimizers {
namespace {

enum State : std::size_t { kSum, kStep };

struct AdagradGroup {
  double lr, lr_decay, weight_decay, initial, eps;
};

class Adagrad {
 public:
  Adagrad(const sdk::Host&, const sdk::Params&) {}

  void update(const sdk::Slots& slots, const sdk::Step& step) const {
    const auto groups = step.each_group(&read);
    ElementwiseUpdate update(slots.size());
    StepNumbers<AdagradNumbers> numbers;
    for (const sdk::Slot slot : slots) {
      const AdagradGroup& group = groups[slot.group()];
      const std::int64_t t = ++slot.counter(kStep);
      update.add(slot, {kSum}, &adagrad_kernel,
                 &numbers.get(slot.group(), t, [&] { return numbers_at(group, t, step.grad_scale()); }));
    }
    update.run();
  }

 private:
  static AdagradGroup read(const sdk::Group& group) {
    return {group.number("lr"), group.number("lr_decay"), group.number("weight_decay"),
            group.number("initial_accumulator_value"), group.number("eps")};
  }

  static AdagradNumbers numbers_at(const AdagradGroup& group, std::int64_t t, double grad_scale) {
    return {.grad_scale = static_cast<float>(grad_scale),
            .l2 = static_cast<float>(group.weight_decay),
            .lr = static_cast<float>(group.lr / (1.0 + static_cast<double>(t - 1) * group.lr_decay)),
            .eps = static_cast<float>(group.eps),
            .initial = t == 1 ? static_cast<float>(group.initial) : 0.0f};
  }
};

}  // namespace
}  // namespace capstan::optimizers

CAPSTAN_PLUGIN(&capstan::sdk::optimizer<capstan::optimizers::Adagrad, "Adagrad">)
