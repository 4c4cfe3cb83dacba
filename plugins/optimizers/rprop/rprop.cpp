#include "capstan/sdk/elements.hpp"
#include "plugins/optimizers/common/moment_rules.hpp"

CAPSTAN_RULES

/// Rprop (Riedmiller and Braun 1993), as torch has it: each weight has its own step size, which grows while the sign of
/// the gradient stays and shrinks when it turns; in an update where it turned the weight waits.
/// States: prev, step_size.
struct RpropRule {
  static constexpr int kStates = 2;
  float grad_scale, eta_minus, eta_plus, least, greatest;
  float keep, start;  // the size is keep * size + start before it changes

  template <class V>
  CAPSTAN_RULE void operator()(V& p, V grad, V* state) const {
    V &previous = state[0], &size = state[1];
    const V zero(0.0f), one(1.0f), g = grad * grad_scale;
    // Signs are compared, not multiplied gradients: the product of two small gradients would vanish.
    const auto moving = (g != zero) & (previous != zero);
    const auto turned = moving & (copy_sign(one, g) != copy_sign(one, previous));
    const V factor = select(turned, V(eta_minus), select(moving, V(eta_plus), one));
    size = min(max(mul_add(V(keep), size, V(start)) * factor, V(least)), V(greatest));
    previous = select(turned, zero, g);
    p = p - select(previous == zero, zero, copy_sign(size, previous));
  }
};
CAPSTAN_RULE_KERNEL(RpropRule)

CAPSTAN_RULES_END

#if CAPSTAN_ONCE
CAPSTAN_RULE_EXPORT(RpropRule)

namespace capstan::optimizers {
namespace {

enum State : std::size_t { kPrev, kStepSize, kStep };

class Rprop {
 public:
  Rprop(const sdk::Host&, const sdk::Params& params) {
    params.require(params.number("etas/0") < 1 && params.number("etas/1") > 1, "etas",
                   "the first must be below 1 and the second above 1.");
    params.require(params.number("step_sizes/0") <= params.number("step_sizes/1"), "step_sizes",
                   "the first must not exceed the second.");
  }

  void update(const sdk::Slots& slots, const sdk::Step& step, ElementUpdates& updates) const {
    const auto rules = step.each_group([&](const sdk::Group& group) { return read(group, step.grad_scale()); });
    const auto first = step.each_group([&](const sdk::Group& group) {
      RpropRule rule = read(group, step.grad_scale());
      rule.keep = 0;
      rule.start = static_cast<float>(group.number("lr"));
      return rule;
    });
    for (const sdk::Slot slot : slots) {
      const bool is_first = ++slot.counter(kStep) == 1;
      updates.add(slot, {kPrev, kStepSize}, (is_first ? first : rules)[slot.group()]);
    }
    updates.run();
  }

 private:
  static RpropRule read(const sdk::Group& group, double grad_scale) {
    double etas[2], sizes[2];
    group.read("etas", etas, 2);
    group.read("step_sizes", sizes, 2);
    return {.grad_scale = static_cast<float>(grad_scale),
            .eta_minus = static_cast<float>(etas[0]),
            .eta_plus = static_cast<float>(etas[1]),
            .least = static_cast<float>(sizes[0]),
            .greatest = static_cast<float>(sizes[1]),
            .keep = 1,
            .start = 0};
  }
};

}  // namespace
}  // namespace capstan::optimizers

CAPSTAN_PLUGIN(&capstan::sdk::optimizer<capstan::elements::OnElements<capstan::optimizers::Rprop>, "Rprop">)
#endif
