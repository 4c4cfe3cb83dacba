#include <cmath>
#include <cstdint>

#include "capstan/sdk/optimizer.hpp"
#include "plugins/optimizers/common/elementwise.hpp"
#include "plugins/optimizers/common/moment_group.hpp"
#include "plugins/optimizers/common/step_numbers.hpp"
#include "plugins/optimizers/radam/radam_kernel.hpp"

namespace capstan::optimizers {
namespace {

enum State : std::size_t { kExpAvg, kExpAvgSq, kStep };

struct RadamGroup : MomentGroup {
  bool decoupled;
};

struct RadamStep {
  RadamNumbers numbers;
  bool tractable;
};

class RAdam {
 public:
  RAdam(const sdk::Host&, const sdk::Params&) {}

  void update(const sdk::Slots& slots, const sdk::Step& step) const {
    const auto groups = step.each_group(&read);
    ElementwiseUpdate update(slots.size());
    StepNumbers<RadamStep> steps;
    for (const sdk::Slot slot : slots) {
      const RadamGroup& group = groups[slot.group()];
      const std::int64_t t = ++slot.counter(kStep);
      const RadamStep& now = steps.get(slot.group(), t, [&] { return step_at(group, t, step.grad_scale()); });
      update.add(slot, {kExpAvg, kExpAvgSq}, now.tractable ? &radam_kernel : &radam_momentum_kernel, &now.numbers);
    }
    update.run();
  }

 private:
  static RadamGroup read(const sdk::Group& group) {
    return {MomentGroup::of(group), group.boolean("decoupled_weight_decay")};
  }

  static RadamStep step_at(const RadamGroup& group, std::int64_t t, double grad_scale) {
    const auto step = static_cast<double>(t);
    const double beta2_t = std::pow(group.beta2, step);
    const double c1 = 1.0 - std::pow(group.beta1, step), c2 = 1.0 - beta2_t;
    // Length of the simple average that the second moment stands for, in the limit and now (the paper's rho).
    const double limit = 2.0 / (1.0 - group.beta2) - 1.0;
    const double length = limit - 2.0 * step * beta2_t / c2;
    const bool tractable = length > 5.0;
    double rate = group.lr / c1;
    if (tractable) {
      rate *=
          std::sqrt(c2) * std::sqrt((length - 4.0) * (length - 2.0) * limit / ((limit - 4.0) * (limit - 2.0) * length));
    }
    return {{.moments = Moments(grad_scale, group.decoupled ? 0.0 : group.weight_decay, group.beta1, group.beta2),
             .eps = static_cast<float>(group.eps),
             .decay = static_cast<float>(group.decoupled ? group.lr * group.weight_decay : 0.0),
             .rate = static_cast<float>(rate)},
            tractable};
  }
};

}  // namespace
}  // namespace capstan::optimizers

CAPSTAN_PLUGIN(&capstan::sdk::optimizer<capstan::optimizers::RAdam, "RAdam">)
