#include <cmath>
#include <cstdint>

#include "capstan/sdk/optimizer.hpp"
#include "plugins/optimizers/adamax/adamax_kernel.hpp"
#include "plugins/optimizers/common/elementwise.hpp"
#include "plugins/optimizers/common/moment_group.hpp"
#include "plugins/optimizers/common/step_numbers.hpp"

namespace capstan::optimizers {
namespace {

enum State : std::size_t { kExpAvg, kExpInf, kStep };

class Adamax {
 public:
  Adamax(const sdk::Host&, const sdk::Params&) {}

  void update(const sdk::Slots& slots, const sdk::Step& step) const {
    const auto groups = step.each_group([](const sdk::Group& group) { return MomentGroup::of(group); });
    ElementwiseUpdate update(slots.size());
    StepNumbers<AdamaxNumbers> numbers;
    for (const sdk::Slot slot : slots) {
      const MomentGroup& group = groups[slot.group()];
      const std::int64_t t = ++slot.counter(kStep);
      update.add(slot, {kExpAvg, kExpInf}, &adamax_kernel,
                 &numbers.get(slot.group(), t, [&] { return numbers_at(group, t, step.grad_scale()); }));
    }
    update.run();
  }

 private:
  static AdamaxNumbers numbers_at(const MomentGroup& group, std::int64_t t, double grad_scale) {
    const double c1 = 1.0 - std::pow(group.beta1, static_cast<double>(t));
    return {.moments = Moments(grad_scale, group.weight_decay, group.beta1, group.beta2),
            .eps = static_cast<float>(group.eps),
            .rate = static_cast<float>(group.lr / c1)};
  }
};

}  // namespace
}  // namespace capstan::optimizers

CAPSTAN_PLUGIN(&capstan::sdk::optimizer<capstan::optimizers::Adamax, "Adamax">)
