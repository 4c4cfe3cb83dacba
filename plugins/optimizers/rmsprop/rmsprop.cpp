#include "capstan/sdk/elements.hpp"
#include "plugins/optimizers/common/moment_rules.hpp"

CAPSTAN_RULES

/// RMSprop (Hinton 2012; centered: Graves 2013), as torch has it:
///   g += l2*p;  s = alpha*s + (1-alpha)*g^2;  a = alpha*a + (1-alpha)*g, 0 unless centered;
///   d = g / (sqrt(s - a^2) + eps);  b = momentum*b + d;  p -= lr * b, or lr * d without momentum
struct RmspropNumbers {
  float grad_scale, l2, lr, eps;
  float alpha, one_minus_alpha;
  float momentum;

  template <class V>
  CAPSTAN_RULE V direction(V p, V grad, V& s) const {
    const V g = decayed(p, grad, grad_scale, l2);
    s = mul_add(V(alpha), s, one_minus_alpha * (g * g));
    return g / (sqrt(s) + eps);
  }
  template <class V>
  CAPSTAN_RULE V centered_direction(V p, V grad, V& s, V& a) const {
    const V g = decayed(p, grad, grad_scale, l2);
    s = mul_add(V(alpha), s, one_minus_alpha * (g * g));
    a = mul_add(V(alpha), a, one_minus_alpha * g);
    // A variance; rounding must not make it negative.
    return g / (sqrt(max(neg_mul_add(a, a, s), V(0.0f))) + eps);
  }
};

/// State: square_avg.
struct RmspropRule : RmspropNumbers {
  static constexpr int kStates = 1;
  template <class V>
  CAPSTAN_RULE void operator()(V& p, V grad, V* state) const {
    p = neg_mul_add(V(lr), direction(p, grad, state[0]), p);
  }
};
CAPSTAN_RULE_KERNEL(RmspropRule)

/// States: square_avg, momentum_buffer.
struct RmspropMomentumRule : RmspropNumbers {
  static constexpr int kStates = 2;
  template <class V>
  CAPSTAN_RULE void operator()(V& p, V grad, V* state) const {
    state[1] = mul_add(V(momentum), state[1], direction(p, grad, state[0]));
    p = neg_mul_add(V(lr), state[1], p);
  }
};
CAPSTAN_RULE_KERNEL(RmspropMomentumRule)

/// States: square_avg, grad_avg.
struct RmspropCenteredRule : RmspropNumbers {
  static constexpr int kStates = 2;
  template <class V>
  CAPSTAN_RULE void operator()(V& p, V grad, V* state) const {
    p = neg_mul_add(V(lr), centered_direction(p, grad, state[0], state[1]), p);
  }
};
CAPSTAN_RULE_KERNEL(RmspropCenteredRule)

/// States: square_avg, grad_avg, momentum_buffer.
struct RmspropCenteredMomentumRule : RmspropNumbers {
  static constexpr int kStates = 3;
  template <class V>
  CAPSTAN_RULE void operator()(V& p, V grad, V* state) const {
    state[2] = mul_add(V(momentum), state[2], centered_direction(p, grad, state[0], state[1]));
    p = neg_mul_add(V(lr), state[2], p);
  }
};
CAPSTAN_RULE_KERNEL(RmspropCenteredMomentumRule)

CAPSTAN_RULES_END

#if CAPSTAN_ONCE
CAPSTAN_RULE_NUMBERS(RmspropNumbers)
CAPSTAN_RULE_EXPORT(RmspropRule)
CAPSTAN_RULE_EXPORT(RmspropMomentumRule)
CAPSTAN_RULE_EXPORT(RmspropCenteredRule)
CAPSTAN_RULE_EXPORT(RmspropCenteredMomentumRule)

namespace capstan::optimizers {
namespace {

enum State : std::size_t { kSquareAvg, kGradAvg, kMomentumBuffer };

/// A group's numbers, in the rule of each form.
struct RmspropGroup {
  bool centered, has_momentum;
  RmspropRule plain;
  RmspropMomentumRule momentum;
  RmspropCenteredRule of_centered;
  RmspropCenteredMomentumRule of_both;
};

class RMSprop {
 public:
  RMSprop(const sdk::Host&, const sdk::Params&) {}

  void update(const sdk::Slots& slots, const sdk::Step& step, ElementUpdates& updates) const {
    const auto groups = step.each_group([&](const sdk::Group& group) { return read(group, step.grad_scale()); });
    for (const sdk::Slot slot : slots) {
      const RmspropGroup& group = groups[slot.group()];
      if (group.centered && group.has_momentum) {
        updates.add(slot, {kSquareAvg, kGradAvg, kMomentumBuffer}, group.of_both);
      } else if (group.centered) {
        updates.add(slot, {kSquareAvg, kGradAvg}, group.of_centered);
      } else if (group.has_momentum) {
        updates.add(slot, {kSquareAvg, kMomentumBuffer}, group.momentum);
      } else {
        updates.add(slot, {kSquareAvg}, group.plain);
      }
    }
    updates.run();
  }

 private:
  static RmspropGroup read(const sdk::Group& group, double grad_scale) {
    const double alpha = group.number("alpha"), momentum = group.number("momentum");
    const auto numbers = RmspropNumbers{.grad_scale = static_cast<float>(grad_scale),
                                        .l2 = static_cast<float>(group.number("weight_decay")),
                                        .lr = static_cast<float>(group.number("lr")),
                                        .eps = static_cast<float>(group.number("eps")),
                                        .alpha = static_cast<float>(alpha),
                                        .one_minus_alpha = static_cast<float>(1.0 - alpha),
                                        .momentum = static_cast<float>(momentum)};
    return {group.boolean("centered"), momentum != 0, {numbers}, {numbers}, {numbers}, {numbers}};
  }
};

}  // namespace
}  // namespace capstan::optimizers

CAPSTAN_PLUGIN(&capstan::sdk::optimizer<capstan::elements::OnElements<capstan::optimizers::RMSprop>, "RMSprop">)
#endif
