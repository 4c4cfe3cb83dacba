#include "capstan/sdk/elements.hpp"
#include "plugins/optimizers/common/moment_rules.hpp"

CAPSTAN_RULES

/// NAdam (Dozat 2016), as torch has it:  p -= lr*decay*p, or g += l2*p;  m, v as Adam's;
///   p -= (grad_rate*g + moment_rate*m) / (sqrt(v/c2) + eps)
/// States: exp_avg, exp_avg_sq.
struct NadamRule {
  static constexpr int kStates = 2;
  Moments moments;
  float eps;
  float decay;            // lr * weight_decay where the decay is decoupled
  float grad_rate;        // lr * (1 - mu_t) / (1 - product of mu up to t)
  float moment_rate;      // lr * mu_t+1 / (1 - product of mu up to t+1)
  float inverse_sqrt_c2;  // 1 / sqrt(1 - beta2^t)

  template <class V>
  CAPSTAN_RULE void operator()(V& p, V grad, V* state) const {
    const V g = take_averages(moments, p, grad, state);
    const V ahead = mul_add(V(moment_rate), state[0], grad_rate * g);
    const V denominator = mul_add(sqrt(state[1]), V(inverse_sqrt_c2), V(eps));
    p = neg_mul_add(V(decay), p, p) - ahead / denominator;
  }
};
CAPSTAN_RULE_KERNEL(NadamRule)

CAPSTAN_RULES_END

#if CAPSTAN_ONCE
#include <cmath>
#include <deque>

#include "plugins/optimizers/common/moment_group.hpp"

CAPSTAN_RULE_EXPORT(NadamRule)

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

  void update(const sdk::Slots& slots, const sdk::Step& step, ElementUpdates& updates) const {
    const auto groups = step.each_group(&read);
    std::deque<NadamRule> rules;
    for (const sdk::Slot slot : slots) {
      const NadamGroup& group = groups[slot.group()];
      const std::int64_t t = ++slot.counter(kStep);
      rules.push_back(rule_at(group, t, slot.number(kMuProduct), step.grad_scale()));
      updates.add(slot, {kExpAvg, kExpAvgSq}, rules.back());
    }
    updates.run();
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
  static NadamRule rule_at(const NadamGroup& group, std::int64_t t, float& mu_product, double grad_scale) {
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

CAPSTAN_PLUGIN(&capstan::sdk::optimizer<capstan::elements::OnElements<capstan::optimizers::NAdam>, "NAdam">)
#endif
