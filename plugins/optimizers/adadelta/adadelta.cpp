#include <cstdint>

#include "capstan/sdk/optimizer.hpp"
#include "plugins/optimizers/adadelta/adadelta_kernel.hpp"
#include "plugins/optimizers/common/elementwise.hpp"

namespace capstan::optimizers {
namespace {

enum State : std::size_t { kSquareAvg, kAccDelta };

class Adadelta {
 public:
  Adadelta(const sdk::Host&, const sdk::Params&) {}

  void update(const sdk::Slots& slots, const sdk::Step& step) const {
    const auto numbers = step.each_group([&](const sdk::Group& group) { return read(group, step.grad_scale()); });
    ElementwiseUpdate update(slots.size());
    for (const sdk::Slot slot : slots) {
      update.add(slot, {kSquareAvg, kAccDelta}, &adadelta_kernel, &numbers[slot.group()]);
    }
    update.run();
  }

 private:
  static AdadeltaNumbers read(const sdk::Group& group, double grad_scale) {
    const double rho = group.number("rho");
    return {.grad_scale = static_cast<float>(grad_scale),
            .l2 = static_cast<float>(group.number("weight_decay")),
            .lr = static_cast<float>(group.number("lr")),
            .eps = static_cast<float>(group.number("eps")),
            .rho = static_cast<float>(rho),
            .one_minus_rho = static_cast<float>(1.0 - rho)};
  }
};

}  // namespace
}  // namespace capstan::optimizers

CAPSTAN_PLUGIN(&capstan::sdk::optimizer<capstan::optimizers::Adadelta, "Adadelta">)
