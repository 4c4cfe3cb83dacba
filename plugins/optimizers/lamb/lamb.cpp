#include "capstan/sdk/elements.hpp"
#include "plugins/optimizers/common/moment_rules.hpp"

CAPSTAN_RULES

/// LAMB (You et al. 2020) as DeepSpeed has it:  m, v as Adam's;  u = m / (sqrt(v) + eps) + decay*p, without bias
/// correction;  p -= lr * correction * trust * u  with the trust ratio |p| / |u| of the whole parameter
struct LambNumbers {
  Moments moments;
  float eps_inside, eps_outside;  // epsilon inside and outside of the square root; one of them is 0
  float decay;

  template <class V>
  CAPSTAN_RULE V direction(V p, V grad, V* state) const {
    take_averages(moments, p, grad, state);
    return mul_add(V(decay), p, state[0] / (sqrt(state[1] + eps_inside) + eps_outside));
  }
};

/// States: exp_avg, exp_avg_sq.
struct LambRule : LambNumbers {
  static constexpr int kStates = 2;
  float rate;  // lr, bias correction and trust ratio
  template <class V>
  CAPSTAN_RULE void operator()(V& p, V grad, V* state) const {
    p = neg_mul_add(V(rate), direction(p, grad, state), p);
  }
};
CAPSTAN_RULE_KERNEL(LambRule)

/// Sums: squares of the weights, squares of the direction that the update will take. States as LambRule's: the moments
/// are worked out as in the update but not kept, so that a measurement may be repeated or dropped.
struct LambMeasure : LambNumbers {
  static constexpr int kStates = 2;
  static constexpr int kMeasures = 2;
  template <class V, class Sums>
  CAPSTAN_RULE void operator()(V p, V grad, const V* state, Sums& sums) const {
    V moments_of_update[] = {state[0], state[1]};
    const V update = direction(p, grad, moments_of_update);
    sums.add(0, p, p);
    sums.add(1, update, update);
  }
};
CAPSTAN_RULE_KERNEL(LambMeasure)

CAPSTAN_RULES_END

#if CAPSTAN_ONCE
#include <algorithm>
#include <cmath>
#include <deque>

#include "plugins/optimizers/common/moment_group.hpp"

CAPSTAN_RULE_NUMBERS(LambNumbers)
CAPSTAN_RULE_EXPORT(LambRule)
CAPSTAN_RULE_EXPORT(LambMeasure)

namespace capstan::optimizers {
namespace {

enum State : std::size_t { kExpAvg, kExpAvgSq, kStep, kTrust };
enum Measure : std::size_t { kWeights, kDirections };

struct LambGroup : MomentGroup {
  double min_coeff, max_coeff;
  bool bias_correction, eps_inside_sqrt;
};

class Lamb {
 public:
  static constexpr std::size_t kMeasures = 2;

  Lamb(const sdk::Host&, const sdk::Params& params) {
    params.require(!params.boolean("amsgrad"), "amsgrad", "Lamb has no AMSGrad form; remove it or set it to false.");
    params.require(params.number("min_coeff") <= params.number("max_coeff"), "min_coeff", "must not exceed max_coeff.");
  }

  void measure(const sdk::Slots& slots, const sdk::Step& step, ElementMeasures& measures) const {
    const auto rules = step.each_group(
        [&](const sdk::Group& group) { return LambMeasure{numbers_of(read(group), step.grad_scale())}; });
    for (std::size_t i = 0; i < slots.size(); ++i) measures.add(i, {kExpAvg, kExpAvgSq}, rules[slots[i].group()]);
    measures.run();
  }

  void update(const sdk::Slots& slots, const sdk::Step& step, ElementUpdates& updates) const {
    const auto groups = step.each_group(&read);
    std::deque<LambRule> rules;
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const sdk::Slot slot = slots[i];
      const LambGroup& group = groups[slot.group()];
      const std::int64_t t = ++slot.counter(kStep);
      const double trust = trust_ratio(group, step.total(i, kWeights), step.total(i, kDirections));
      slot.number(kTrust) = static_cast<float>(trust);
      rules.push_back({numbers_of(group, step.grad_scale()), static_cast<float>(rate_at(group, t) * trust)});
      updates.add(slot, {kExpAvg, kExpAvgSq}, rules.back());
    }
    updates.run();
  }

 private:
  static LambGroup read(const sdk::Group& group) {
    return {MomentGroup::of(group), group.number("min_coeff"), group.number("max_coeff"),
            group.boolean("bias_correction"), group.boolean("eps_inside_sqrt")};
  }

  /// Bias correction enters here alone, not the ratio.
  static double rate_at(const LambGroup& group, std::int64_t t) {
    if (!group.bias_correction) return group.lr;
    const auto step = static_cast<double>(t);
    return group.lr * std::sqrt(1.0 - std::pow(group.beta2, step)) / (1.0 - std::pow(group.beta1, step));
  }

  static double trust_ratio(const LambGroup& group, double weight_squares, double direction_squares) {
    if (weight_squares == 0 || direction_squares == 0) return 1.0;
    return std::min(std::max(std::sqrt(weight_squares / direction_squares), group.min_coeff), group.max_coeff);
  }

  static LambNumbers numbers_of(const LambGroup& group, double grad_scale) {
    const auto eps = static_cast<float>(group.eps);
    return {.moments = Moments(grad_scale, 0.0, group.beta1, group.beta2),
            .eps_inside = group.eps_inside_sqrt ? eps : 0.0f,
            .eps_outside = group.eps_inside_sqrt ? 0.0f : eps,
            .decay = static_cast<float>(group.weight_decay)};
  }
};

}  // namespace
}  // namespace capstan::optimizers

CAPSTAN_PLUGIN(&capstan::sdk::optimizer<capstan::elements::OnElements<capstan::optimizers::Lamb>, "Lamb">)
#endif
