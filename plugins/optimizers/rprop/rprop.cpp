#include <cstdint>

#include "capstan/sdk/optimizer.hpp"
#include "plugins/optimizers/common/elementwise.hpp"
#include "plugins/optimizers/rprop/rprop_kernel.hpp"

namespace capstan::optimizers {
namespace {

enum State : std::size_t { kPrev, kStepSize, kStep };

class Rprop {
 public:
  Rprop(const sdk::Host&, const sdk::Params& params) {
    params.require(params.number("etas/0") < 1 && params.number("etas/1") > 1, "etas",
                   "the first must be below 1 and the second above 1.");
    params.require(params.number("step_sizes/0") <= params.number("step_sizes/1"), "step_sizes",
                   "the first must not exceed the second.");
  }

  void update(const sdk::Slots& slots, const sdk::Step& step) const {
    const auto groups = step.each_group([&](const sdk::Group& group) { return read(group, step.grad_scale()); });
    const auto first = step.each_group([&](const sdk::Group& group) {
      RpropNumbers numbers = read(group, step.grad_scale());
      numbers.keep = 0;
      numbers.start = static_cast<float>(group.number("lr"));
      return numbers;
    });
    ElementwiseUpdate update(slots.size());
    for (const sdk::Slot slot : slots) {
      const bool is_first = ++slot.counter(kStep) == 1;
      update.add(slot, {kPrev, kStepSize}, &rprop_kernel, &(is_first ? first : groups)[slot.group()]);
    }
    update.run();
  }

 private:
  static RpropNumbers read(const sdk::Group& group, double grad_scale) {
    double etas[2], sizes[2];
    group.read("etas", etas, 2);
    group.read("step_sizes", sizes, 2);
    return {.grad_scale = static_cast<float>(grad_scale),
            .eta_minus = static_cast<float>(etas[0]),
            .eta_plus = static_cast<float>(etas[1]),
            .least = static_cast<float>(sizes[0]),
            .greatest = static_cast<float>(sizes[1]),
            .keep = 1,
            .start = 0};
  }
};

}  // namespace
}  // namespace capstan::optimizers

CAPSTAN_PLUGIN(&capstan::sdk::optimizer<capstan::optimizers::Rprop, "Rprop">)
