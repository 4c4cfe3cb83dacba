#include "capstan/sdk/elements.hpp"
#include "plugins/optimizers/common/moment_rules.hpp"

CAPSTAN_RULES

/// Lion (Chen et al. 2023):  p -= lr * (sign(b1*m + (1-b1)*g) + decay*p);  m = b2*m + (1-b2)*g
/// State: exp_avg.
struct LionRule {
  static constexpr int kStates = 1;
  Moments moments;
  float lr, decay;

  template <class V>
  CAPSTAN_RULE void operator()(V& p, V grad, V* m) const {
    const V g = decayed(moments, p, grad);
    // The sign is taken of the interpolation, before the momentum moves; that of 0 is 0.
    const V blend = first_average(moments, *m, g);
    const V sign = select(blend == V(0.0f), V(0.0f), copy_sign(V(1.0f), blend));
    p = neg_mul_add(V(lr), mul_add(V(decay), p, sign), p);
    *m = mul_add(V(moments.beta2), *m, moments.one_minus_beta2 * g);
  }
};
CAPSTAN_RULE_KERNEL(LionRule)

CAPSTAN_RULES_END

#if CAPSTAN_ONCE
CAPSTAN_RULE_EXPORT(LionRule)

namespace capstan::optimizers {
namespace {

enum State : std::size_t { kExpAvg };

class Lion {
 public:
  Lion(const sdk::Host&, const sdk::Params&) {}

  void update(const sdk::Slots& slots, const sdk::Step& step, ElementUpdates& updates) const {
    const auto rules = step.each_group([&](const sdk::Group& group) { return read(group, step.grad_scale()); });
    for (const sdk::Slot slot : slots) updates.add(slot, {kExpAvg}, rules[slot.group()]);
    updates.run();
  }

 private:
  static LionRule read(const sdk::Group& group, double grad_scale) {
    double betas[2];
    group.read("betas", betas, 2);
    return {.moments = Moments(grad_scale, 0.0, betas[0], betas[1]),
            .lr = static_cast<float>(group.number("lr")),
            .decay = static_cast<float>(group.number("weight_decay"))};
  }
};

}  // namespace
}  // namespace capstan::optimizers

CAPSTAN_PLUGIN(&capstan::sdk::optimizer<capstan::elements::OnElements<capstan::optimizers::Lion>, "Lion">)
#endif
