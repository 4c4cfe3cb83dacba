#include "capstan/sdk/elements.hpp"
#include "plugins/optimizers/common/moment_rules.hpp"

CAPSTAN_RULES

/// RAdam (Liu et al. 2020), as torch has it:  p -= lr*decay*p, or g += l2*p;  m, v as Adam's;
///   p -= rate * m, or rate * m / (sqrt(v) + eps) once the variance of the second moment is tractable
/// States: exp_avg, exp_avg_sq.
struct RadamNumbers {
  static constexpr int kStates = 2;
  Moments moments;
  float eps;
  float decay;  // lr * weight_decay where the decay is decoupled
  float rate;
};

struct RadamMomentumRule : RadamNumbers {
  template <class V>
  CAPSTAN_RULE void operator()(V& p, V grad, V* state) const {
    take_averages(moments, p, grad, state);
    p = neg_mul_add(V(rate), state[0], neg_mul_add(V(decay), p, p));
  }
};
CAPSTAN_RULE_KERNEL(RadamMomentumRule)

struct RadamRule : RadamNumbers {
  template <class V>
  CAPSTAN_RULE void operator()(V& p, V grad, V* state) const {
    take_averages(moments, p, grad, state);
    p = neg_mul_add(V(rate), state[0] / (sqrt(state[1]) + eps), neg_mul_add(V(decay), p, p));
  }
};
CAPSTAN_RULE_KERNEL(RadamRule)

CAPSTAN_RULES_END

#if CAPSTAN_ONCE
#include <cmath>

#include "capstan/sdk/elements/step_numbers.hpp"
#include "plugins/optimizers/common/moment_group.hpp"

CAPSTAN_RULE_NUMBERS(RadamNumbers)
CAPSTAN_RULE_EXPORT(RadamMomentumRule)
CAPSTAN_RULE_EXPORT(RadamRule)

namespace capstan::optimizers {
namespace {

enum State : std::size_t { kExpAvg, kExpAvgSq, kStep };

struct RadamGroup : MomentGroup {
  bool decoupled;
};

struct RadamStep {
  RadamRule rule;
  RadamMomentumRule momentum_rule;
  bool tractable;
};

class RAdam {
 public:
  RAdam(const sdk::Host&, const sdk::Params&) {}

  void update(const sdk::Slots& slots, const sdk::Step& step, ElementUpdates& updates) const {
    const auto groups = step.each_group(&read);
    StepNumbers<RadamStep> steps;
    for (const sdk::Slot slot : slots) {
      const RadamGroup& group = groups[slot.group()];
      const std::int64_t t = ++slot.counter(kStep);
      const RadamStep& now = steps.get(slot.group(), t, [&] { return step_at(group, t, step.grad_scale()); });
      if (now.tractable) {
        updates.add(slot, {kExpAvg, kExpAvgSq}, now.rule);
      } else {
        updates.add(slot, {kExpAvg, kExpAvgSq}, now.momentum_rule);
      }
    }
    updates.run();
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
    const RadamNumbers numbers{
        .moments = Moments(grad_scale, group.decoupled ? 0.0 : group.weight_decay, group.beta1, group.beta2),
        .eps = static_cast<float>(group.eps),
        .decay = static_cast<float>(group.decoupled ? group.lr * group.weight_decay : 0.0),
        .rate = static_cast<float>(rate)};
    return {{numbers}, {numbers}, tractable};
  }
};

}  // namespace
}  // namespace capstan::optimizers

CAPSTAN_PLUGIN(&capstan::sdk::optimizer<capstan::elements::OnElements<capstan::optimizers::RAdam>, "RAdam">)
#endif
