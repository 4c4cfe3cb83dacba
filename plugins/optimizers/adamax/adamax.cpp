#include "capstan/sdk/elements.hpp"
#include "plugins/optimizers/common/moment_rules.hpp"

CAPSTAN_RULES

/// Adamax (Kingma and Ba 2015), as torch has it:  g += l2*p;  m = b1*m + (1-b1)*g;  u = max(b2*u, |g| + eps);
///   p -= rate * m / u
/// States: exp_avg, exp_inf.
struct AdamaxRule {
  static constexpr int kStates = 2;
  Moments moments;
  float eps;
  float rate;  // lr / (1 - beta1^t)

  template <class V>
  CAPSTAN_RULE void operator()(V& p, V grad, V* state) const {
    V &m = state[0], &u = state[1];
    const V g = decayed(moments, p, grad);
    m = first_average(moments, m, g);
    u = max(moments.beta2 * u, abs(g) + eps);
    p = neg_mul_add(V(rate), m / u, p);
  }
};
CAPSTAN_RULE_KERNEL(AdamaxRule)

CAPSTAN_RULES_END

#if CAPSTAN_ONCE
#include <cmath>

#include "capstan/sdk/elements/step_numbers.hpp"
#include "plugins/optimizers/common/moment_group.hpp"

CAPSTAN_RULE_EXPORT(AdamaxRule)

namespace capstan::optimizers {
namespace {

enum State : std::size_t { kExpAvg, kExpInf, kStep };

class Adamax {
 public:
  Adamax(const sdk::Host&, const sdk::Params&) {}

  void update(const sdk::Slots& slots, const sdk::Step& step, ElementUpdates& updates) const {
    const auto groups = step.each_group([](const sdk::Group& group) { return MomentGroup::of(group); });
    StepNumbers<AdamaxRule> rules;
    for (const sdk::Slot slot : slots) {
      const MomentGroup& group = groups[slot.group()];
      const std::int64_t t = ++slot.counter(kStep);
      updates.add(slot, {kExpAvg, kExpInf},
                  rules.get(slot.group(), t, [&] { return rule_at(group, t, step.grad_scale()); }));
    }
    updates.run();
  }

 private:
  static AdamaxRule rule_at(const MomentGroup& group, std::int64_t t, double grad_scale) {
    const double c1 = 1.0 - std::pow(group.beta1, static_cast<double>(t));
    return {.moments = Moments(grad_scale, group.weight_decay, group.beta1, group.beta2),
            .eps = static_cast<float>(group.eps),
            .rate = static_cast<float>(group.lr / c1)};
  }
};

}  // namespace
}  // namespace capstan::optimizers

CAPSTAN_PLUGIN(&capstan::sdk::optimizer<capstan::elements::OnElements<capstan::optimizers::Adamax>, "Adamax">)
#endif
