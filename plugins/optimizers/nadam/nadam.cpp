#include <cmath>
#include <cstdint>
#include <deque>

#include "capstan/sdk/optimizer.hpp"
#include "plugins/optimizers/common/elementwise.hpp"
#include "plugins/optimizers/common/moment_group.hpp"
#include "plugins/optimizers/nadam/nadam_kernel.hpp"

namespace capstan::optimizers {
namespace {

enum State : std::size_t { kExpAvg, kExpAvgSq, kStep, kMuProduct };

struct NadamGroup : MomentGroup {
  double momentum_decay;
  bool decoupled;
};

class NAdam {
 public:
  NAdam(const sdk::Host&, const sdk::Params&) {}

  void update(const sdk::Slots& slots, const sdk::Step& step) const {
    const auto groups = step.each_group(&read);
    ElementwiseUpdate update(slots.size());
    std::deque<NadamNumbers> numbers;
    for (const sdk::Slot slot : slots) {
      const NadamGroup& group = groups[slot.group()];
      const std::int64_t t = ++slot.counter(kStep);
      numbers.push_back(numbers_at(group, t, slot.number(kMuProduct), step.grad_scale()));
      update.add(slot, {kExpAvg, kExpAvgSq}, &nadam_kernel, &numbers.back());
    }
    update.run();
  }

 private:
  static NadamGroup read(const sdk::Group& group) {
    return {MomentGroup::of(group), group.number("momentum_decay"), group.boolean("decoupled_weight_decay")};
  }

  /// The momentum of update `t`: it rises towards beta1.
  static double mu(const NadamGroup& group, std::int64_t t) {
    return group.beta1 * (1.0 - 0.5 * std::pow(0.96, static_cast<double>(t) * group.momentum_decay));
  }

  /// Multiplies `mu_product` by the momentum of update `t`.
  static NadamNumbers numbers_at(const NadamGroup& group, std::int64_t t, float& mu_product, double grad_scale) {
    const double now = mu(group, t), next = mu(group, t + 1);
    mu_product = static_cast<float>(mu_product * now);
    const double c2 = 1.0 - std::pow(group.beta2, static_cast<double>(t));
    return {.moments = Moments(grad_scale, group.decoupled ? 0.0 : group.weight_decay, group.beta1, group.beta2),
            .eps = static_cast<float>(group.eps),
            .decay = static_cast<float>(group.decoupled ? group.lr * group.weight_decay : 0.0),
            .grad_rate = static_cast<float>(group.lr * (1.0 - now) / (1.0 - mu_product)),
            .moment_rate = static_cast<float>(group.lr * next / (1.0 - mu_product * next)),
            .inverse_sqrt_c2 = static_cast<float>(1.0 / std::sqrt(c2))};
  }
};

}  // namespace
}  // namespace capstan::optimizers

CAPSTAN_PLUGIN(&capstan::sdk::optimizer<capstan::optimizers::NAdam, "NAdam">)
