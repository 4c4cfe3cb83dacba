#include "capstan/sdk/elements.hpp"
#include "plugins/optimizers/common/moment_rules.hpp"

CAPSTAN_RULES

/// Adam (Kingma and Ba 2015), AdamW (Loshchilov and Hutter 2019), AMSGrad (Reddi et al. 2018):
///   g += l2 * p;  m = b1*m + (1-b1)*g;  v = b2*v + (1-b2)*g^2;
///   p -= lr * ((m/c1) / (sqrt(v/c2) + eps) + decay*p)
struct AdamNumbers {
  Moments moments;
  float lr;
  float eps;
  float decay;            // the decay that stays apart from the gradient
  float inverse_c1;       // 1 / (1 - beta1^t)
  float inverse_sqrt_c2;  // 1 / sqrt(1 - beta2^t)

  template <class V>
  CAPSTAN_RULE V moved(V p, V m, V v) const {
    const V denominator = mul_add(sqrt(v), V(inverse_sqrt_c2), V(eps));
    return neg_mul_add(V(lr), mul_add(V(decay), p, m * inverse_c1 / denominator), p);
  }
};

/// States: exp_avg, exp_avg_sq.
struct AdamRule : AdamNumbers {
  static constexpr int kStates = 2;
  template <class V>
  CAPSTAN_RULE void operator()(V& p, V grad, V* state) const {
    take_averages(moments, p, grad, state);
    p = moved(p, state[0], state[1]);
  }
};
CAPSTAN_RULE_KERNEL(AdamRule)

/// States: exp_avg, exp_avg_sq, max_exp_avg_sq.
struct AmsgradRule : AdamNumbers {
  static constexpr int kStates = 3;
  template <class V>
  CAPSTAN_RULE void operator()(V& p, V grad, V* state) const {
    take_averages(moments, p, grad, state);
    state[2] = max(state[2], state[1]);
    p = moved(p, state[0], state[2]);
  }
};
CAPSTAN_RULE_KERNEL(AmsgradRule)

CAPSTAN_RULES_END

#if CAPSTAN_ONCE
#include <cmath>

#include "capstan/sdk/elements/step_numbers.hpp"
#include "plugins/optimizers/common/moment_group.hpp"

CAPSTAN_RULE_NUMBERS(AdamNumbers)
CAPSTAN_RULE_EXPORT(AdamRule)
CAPSTAN_RULE_EXPORT(AmsgradRule)

namespace capstan::optimizers {
namespace {

enum State : std::size_t { kExpAvg, kExpAvgSq, kMaxExpAvgSq, kStep };

/// A group's numbers, as configured.
struct AdamGroup : MomentGroup {
  bool amsgrad;
};

struct AdamRules {
  AdamRule plain;
  AmsgradRule amsgrad;
};

class AdamOf {
 public:
  AdamOf(const sdk::Host&, const sdk::Params& params, bool always_decoupled)
      : decoupled_(always_decoupled || params.boolean("adam_w_mode")),
        torch_adam_(params.boolean("torch_adam")),
        bias_correction_(params.boolean("bias_correction")),
        // torch's AdamW decays by 0.01 unless told otherwise, every other form by nothing.
        default_decay_(torch_adam_ && decoupled_ ? 0.01 : 0.0) {
    params.require(torch_adam_ || !params.boolean("amsgrad"), "amsgrad",
                   "true needs \"torch_adam\": true beside it; only torch's form of Adam has AMSGrad.");
    params.require(
        !torch_adam_ || bias_correction_, "bias_correction",
        "false is not possible with \"torch_adam\": true, which always corrects the bias. Remove one of them.");
  }

  void update(const sdk::Slots& slots, const sdk::Step& step, ElementUpdates& updates) const {
    const auto groups = step.each_group([&](const sdk::Group& group) { return read(group); });
    StepNumbers<AdamRules> rules;
    for (const sdk::Slot slot : slots) {
      const AdamGroup& group = groups[slot.group()];
      const std::int64_t t = ++slot.counter(kStep);
      const AdamRules& now = rules.get(slot.group(), t, [&] { return rules_at(group, t, step.grad_scale()); });
      if (group.amsgrad) {
        updates.add(slot, {kExpAvg, kExpAvgSq, kMaxExpAvgSq}, now.amsgrad);
      } else {
        updates.add(slot, {kExpAvg, kExpAvgSq}, now.plain);
      }
    }
    updates.run();
  }

 private:
  AdamGroup read(const sdk::Group& group) const {
    return {MomentGroup::of(group, group.number_or("weight_decay", default_decay_)), group.boolean("amsgrad")};
  }

  /// The numbers of a group at step `t`, 1 for the first.
  AdamRules rules_at(const AdamGroup& group, std::int64_t t, double grad_scale) const {
    const double c1 = bias_correction_ ? 1.0 - std::pow(group.beta1, static_cast<double>(t)) : 1.0;
    const double c2 = bias_correction_ ? 1.0 - std::pow(group.beta2, static_cast<double>(t)) : 1.0;
    const AdamNumbers numbers{
        .moments = Moments(grad_scale, decoupled_ ? 0.0 : group.weight_decay, group.beta1, group.beta2),
        .lr = static_cast<float>(group.lr),
        .eps = static_cast<float>(group.eps),
        .decay = static_cast<float>(decoupled_ ? group.weight_decay : 0.0),
        .inverse_c1 = static_cast<float>(1.0 / c1),
        .inverse_sqrt_c2 = static_cast<float>(1.0 / std::sqrt(c2))};
    return {{numbers}, {numbers}};
  }

  bool decoupled_;
  bool torch_adam_;
  bool bias_correction_;
  double default_decay_;
};

/// Decoupled decay unless adam_w_mode is false.
struct Adam : AdamOf {
  Adam(const sdk::Host& host, const sdk::Params& params) : AdamOf(host, params, false) {}
};

/// Decoupled decay always.
struct AdamW : AdamOf {
  AdamW(const sdk::Host& host, const sdk::Params& params) : AdamOf(host, params, true) {
    if (host.rank() == 0 && !params.boolean("adam_w_mode")) {
      host.info(
          "adam_w_mode: false has no effect on AdamW, whose decay is always decoupled. For decay as a part of the "
          "gradient, take the type Adam with it.");
    }
  }
};

}  // namespace
}  // namespace capstan::optimizers

CAPSTAN_PLUGIN(&capstan::sdk::optimizer<capstan::elements::OnElements<capstan::optimizers::Adam>, "Adam">,
               &capstan::sdk::optimizer<capstan::elements::OnElements<capstan::optimizers::AdamW>, "AdamW">)
#endif
