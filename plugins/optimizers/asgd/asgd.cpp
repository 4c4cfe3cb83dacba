#include "capstan/sdk/elements.hpp"
#include "plugins/optimizers/common/moment_rules.hpp"

CAPSTAN_RULES

/// Averaged SGD (Polyak and Juditsky 1992), as torch has it:
///   g += l2*p;  p = (1 - lambd*eta)*p - eta*g;  ax += mu*(p - ax);  eta = lr / (1 + lambd*lr*t)^alpha for the next
///   update
/// State: ax.
struct AsgdRule {
  static constexpr int kStates = 1;
  float grad_scale, l2;
  float eta;     // rate of this update
  float shrink;  // 1 - lambd * eta
  float mu;      // share of the new weights in their average

  template <class V>
  CAPSTAN_RULE void operator()(V& p, V grad, V* ax) const {
    const V g = decayed(p, grad, grad_scale, l2);
    p = neg_mul_add(V(eta), g, shrink * p);
    *ax = mul_add(V(mu), p - *ax, *ax);
  }
};
CAPSTAN_RULE_KERNEL(AsgdRule)

CAPSTAN_RULES_END

#if CAPSTAN_ONCE
#include <algorithm>
#include <cmath>
#include <deque>

CAPSTAN_RULE_EXPORT(AsgdRule)

namespace capstan::optimizers {
namespace {

enum State : std::size_t { kAverage, kStep, kEta };

struct AsgdGroup {
  double lr, lambd, alpha, t0, weight_decay;
};

class ASGD {
 public:
  ASGD(const sdk::Host&, const sdk::Params&) {}

  void update(const sdk::Slots& slots, const sdk::Step& step, ElementUpdates& updates) const {
    const auto groups = step.each_group(&read);
    std::deque<AsgdRule> rules;
    for (const sdk::Slot slot : slots) {
      const AsgdGroup& group = groups[slot.group()];
      const std::int64_t t = ++slot.counter(kStep);
      float& eta = slot.number(kEta);
      if (t == 1) eta = static_cast<float>(group.lr);
      rules.push_back(rule_at(group, t, eta, step.grad_scale()));
      eta = static_cast<float>(group.lr / std::pow(1.0 + group.lambd * group.lr * static_cast<double>(t), group.alpha));
      updates.add(slot, {kAverage}, rules.back());
    }
    updates.run();
  }

 private:
  static AsgdGroup read(const sdk::Group& group) {
    return {group.number("lr"), group.number("lambd"), group.number("alpha"), group.number("t0"),
            group.number("weight_decay")};
  }

  static AsgdRule rule_at(const AsgdGroup& group, std::int64_t t, float eta, double grad_scale) {
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

CAPSTAN_PLUGIN(&capstan::sdk::optimizer<capstan::elements::OnElements<capstan::optimizers::ASGD>, "ASGD">)
#endif
