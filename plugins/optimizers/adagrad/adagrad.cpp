#include "capstan/sdk/elements.hpp"
#include "plugins/optimizers/common/moment_rules.hpp"

CAPSTAN_RULES

/// Adagrad (Duchi et al. 2011):  h = g + l2*p;  v += h^2;  p -= lr/(1 + (t-1)*lr_decay) * h / (sqrt(v) + eps)
/// State: exp_avg_sq, here the sum of squares.
struct AdagradRule {
  static constexpr int kStates = 1;
  float grad_scale, l2, lr, eps;
  float initial;  // joins the sum at the first step

  template <class V>
  CAPSTAN_RULE void operator()(V& p, V grad, V* v) const {
    const V h = decayed(p, grad, grad_scale, l2);
    *v = mul_add(h, h, *v + initial);
    p = neg_mul_add(V(lr), h / (sqrt(*v) + eps), p);
  }
};
CAPSTAN_RULE_KERNEL(AdagradRule)

CAPSTAN_RULES_END

#if CAPSTAN_ONCE
#include "capstan/sdk/elements/step_numbers.hpp"

CAPSTAN_RULE_EXPORT(AdagradRule)

namespace capstan::optimizers {
namespace {

enum State : std::size_t { kSum, kStep };

struct AdagradGroup {
  double lr, lr_decay, weight_decay, initial, eps;
};

class Adagrad {
 public:
  Adagrad(const sdk::Host&, const sdk::Params&) {}

  void update(const sdk::Slots& slots, const sdk::Step& step, ElementUpdates& updates) const {
    const auto groups = step.each_group(&read);
    StepNumbers<AdagradRule> rules;
    for (const sdk::Slot slot : slots) {
      const AdagradGroup& group = groups[slot.group()];
      const std::int64_t t = ++slot.counter(kStep);
      updates.add(slot, {kSum}, rules.get(slot.group(), t, [&] { return rule_at(group, t, step.grad_scale()); }));
    }
    updates.run();
  }

 private:
  static AdagradGroup read(const sdk::Group& group) {
    return {group.number("lr"), group.number("lr_decay"), group.number("weight_decay"),
            group.number("initial_accumulator_value"), group.number("eps")};
  }

  static AdagradRule rule_at(const AdagradGroup& group, std::int64_t t, double grad_scale) {
    return {.grad_scale = static_cast<float>(grad_scale),
            .l2 = static_cast<float>(group.weight_decay),
            .lr = static_cast<float>(group.lr / (1.0 + static_cast<double>(t - 1) * group.lr_decay)),
            .eps = static_cast<float>(group.eps),
            .initial = t == 1 ? static_cast<float>(group.initial) : 0.0f};
  }
};

}  // namespace
}  // namespace capstan::optimizers

CAPSTAN_PLUGIN(&capstan::sdk::optimizer<capstan::elements::OnElements<capstan::optimizers::Adagrad>, "Adagrad">)
#endif
