#include "capstan/sdk/elements.hpp"
#include "plugins/optimizers/common/moment_rules.hpp"

CAPSTAN_RULES

/// Adadelta (Zeiler 2012), as torch has it:  g += l2*p;  s = rho*s + (1-rho)*g^2;
///   delta = sqrt(a + eps) / sqrt(s + eps) * g;  a = rho*a + (1-rho)*delta^2;  p -= lr * delta
/// States: square_avg, acc_delta.
struct AdadeltaRule {
  static constexpr int kStates = 2;
  float grad_scale, l2, lr, eps;
  float rho, one_minus_rho;

  template <class V>
  CAPSTAN_RULE void operator()(V& p, V grad, V* state) const {
    V &s = state[0], &a = state[1];
    const V g = decayed(p, grad, grad_scale, l2);
    s = mul_add(V(rho), s, one_minus_rho * (g * g));
    const V delta = sqrt(a + eps) / sqrt(s + eps) * g;
    a = mul_add(V(rho), a, one_minus_rho * (delta * delta));
    p = neg_mul_add(V(lr), delta, p);
  }
};
CAPSTAN_RULE_KERNEL(AdadeltaRule)

CAPSTAN_RULES_END

#if CAPSTAN_ONCE
CAPSTAN_RULE_EXPORT(AdadeltaRule)

namespace capstan::optimizers {
namespace {

enum State : std::size_t { kSquareAvg, kAccDelta };

class Adadelta {
 public:
  Adadelta(const sdk::Host&, const sdk::Params&) {}

  void update(const sdk::Slots& slots, const sdk::Step& step, ElementUpdates& updates) const {
    const auto rules = step.each_group([&](const sdk::Group& group) { return read(group, step.grad_scale()); });
    for (const sdk::Slot slot : slots) updates.add(slot, {kSquareAvg, kAccDelta}, rules[slot.group()]);
    updates.run();
  }

 private:
  static AdadeltaRule read(const sdk::Group& group, double grad_scale) {
    const double rho = group.number("rho");
    return {.grad_scale = static_cast<float>(grad_scale),
            .l2 = static_cast<float>(group.number("weight_decay")),
            .lr = static_cast<float>(group.number("lr")),
            .eps = static_cast<float>(group.number("eps")),
            .rho = static_cast<float>(rho),
            .one_minus_rho = static_cast<float>(1.0 - rho)};
  }
};

}  // namespace
}  // namespace capstan::optimizers

CAPSTAN_PLUGIN(&capstan::sdk::optimizer<capstan::elements::OnElements<capstan::optimizers::Adadelta>, "Adadelta">)
#endif
