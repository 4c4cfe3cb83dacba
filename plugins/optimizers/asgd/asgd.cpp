#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>

#include "capstan/sdk/optimizer.hpp"
#include "plugins/optimizers/asgd/asgd_kernel.hpp"
#include "plugins/optimizers/common/elementwise.hpp"

namespace capstan::optimizers {
namespace {

enum State : std::size_t { kAverage, kStep, kEta };

struct AsgdGroup {
  double lr, lambd, alpha, t0, weight_decay;
};

class ASGD {
 public:
  ASGD(const sdk::Host&, const sdk::Params&) {}

  void update(const sdk::Slots& slots, const sdk::Step& step) const {
    const auto groups = step.each_group(&read);
    ElementwiseUpdate update(slots.size());
    std::deque<AsgdNumbers> numbers;
    for (const sdk::Slot slot : slots) {
      const AsgdGroup& group = groups[slot.group()];
      const std::int64_t t = ++slot.counter(kStep);
      float& eta = slot.number(kEta);
      if (t == 1) eta = static_cast<float>(group.lr);
      numbers.push_back(numbers_at(group, t, eta, step.grad_scale()));
      eta = static_cast<float>(group.lr / std::pow(1.0 + group.lambd * group.lr * static_cast<double>(t), group.alpha));
      update.add(slot, {kAverage}, &asgd_kernel, &numbers.back());
    }
    update.run();
  }

 private:
  static AsgdGroup read(const sdk::Group& group) {
    return {group.number("lr"), group.number("lambd"), group.number("alpha"), group.number("t0"),
            group.number("weight_decay")};
  }

  static AsgdNumbers numbers_at(const AsgdGroup& group, std::int64_t t, float eta, double grad_scale) {
    const double averaged = std::max(1.0, static_cast<double>(t - 1) - group.t0);
    return {.grad_scale = static_cast<float>(grad_scale),
            .l2 = static_cast<float>(group.weight_decay),
            .eta = eta,
            .shrink = static_cast<float>(1.0 - group.lambd * eta),
            .mu = static_cast<float>(1.0 / averaged)};
  }
};

}  // namespace
}  // namespace capstan::optimizers

CAPSTAN_PLUGIN(&capstan::sdk::optimizer<capstan::optimizers::ASGD, "ASGD">)
