#include <cstdint>

#include "capstan/sdk/optimizer.hpp"
#include "plugins/optimizers/common/elementwise.hpp"
#include "plugins/optimizers/lion/lion_kernel.hpp"

namespace capstan::optimizers {
namespace {

enum State : std::size_t { kExpAvg };

class Lion {
 public:
  Lion(const sdk::Host&, const sdk::Params&) {}

  void update(const sdk::Slots& slots, const sdk::Step& step) const {
    const auto numbers = step.each_group([&](const sdk::Group& group) { return read(group, step.grad_scale()); });
    ElementwiseUpdate update(slots.size());
    for (const sdk::Slot slot : slots) update.add(slot, {kExpAvg}, &lion_kernel, &numbers[slot.group()]);
    update.run();
  }

 private:
  static LionNumbers read(const sdk::Group& group, double grad_scale) {
    double betas[2];
    group.read("betas", betas, 2);
    return {.moments = Moments(grad_scale, 0.0, betas[0], betas[1]),
            .lr = static_cast<float>(group.number("lr")),
            .decay = static_cast<float>(group.number("weight_decay"))};
  }
};

}  // namespace
}  // namespace capstan::optimizers

CAPSTAN_PLUGIN(&capstan::sdk::optimizer<capstan::optimizers::Lion, "Lion">)
