#include "capstan/sdk/elements.hpp"
#include "plugins/optimizers/common/moment_rules.hpp"

CAPSTAN_RULES

struct SgdNumbers {
  float grad_scale, l2, lr;
  float keep, take;                  // buffer = keep * buffer + take * gradient
  float from_buffer, from_gradient;  // direction = from_buffer * buffer + from_gradient * gradient
};

/// Stochastic gradient descent:  g += l2*p;  p -= lr * g
struct SgdRule : SgdNumbers {
  static constexpr int kStates = 0;
  template <class V>
  CAPSTAN_RULE void operator()(V& p, V grad, V*) const {
    p = neg_mul_add(V(lr), decayed(p, grad, grad_scale, l2), p);
  }
};
CAPSTAN_RULE_KERNEL(SgdRule)

/// The rule with momentum (Sutskever et al. 2013), as torch has it:
///   b = momentum*b + (1-dampening)*g, the first b being g itself;  p -= lr * (nesterov ? g + momentum*b : b)
/// State: momentum_buffer.
struct SgdMomentumRule : SgdNumbers {
  static constexpr int kStates = 1;
  template <class V>
  CAPSTAN_RULE void operator()(V& p, V grad, V* buffer) const {
    const V g = decayed(p, grad, grad_scale, l2);
    *buffer = mul_add(V(keep), *buffer, take * g);
    p = neg_mul_add(V(lr), mul_add(V(from_buffer), *buffer, from_gradient * g), p);
  }
};
CAPSTAN_RULE_KERNEL(SgdMomentumRule)

CAPSTAN_RULES_END

#if CAPSTAN_ONCE
#include "capstan/sdk/elements/step_numbers.hpp"

CAPSTAN_RULE_NUMBERS(SgdNumbers)
CAPSTAN_RULE_EXPORT(SgdRule)
CAPSTAN_RULE_EXPORT(SgdMomentumRule)

namespace capstan::optimizers {
namespace {

enum State : std::size_t { kMomentumBuffer, kStep };

/// A group's numbers, as configured.
struct SgdGroup {
  double lr, momentum, dampening, weight_decay;
  bool nesterov;
};

struct SgdRules {
  SgdRule plain;
  SgdMomentumRule momentum;
};

class SGD {
 public:
  SGD(const sdk::Host&, const sdk::Params& params) {
    check_nesterov({0, params.number("momentum"), params.number("dampening"), 0, params.boolean("nesterov")});
  }

  void update(const sdk::Slots& slots, const sdk::Step& step, ElementUpdates& updates) const {
    const auto groups = step.each_group(&read);
    StepNumbers<SgdRules> rules;
    for (const sdk::Slot slot : slots) {
      const SgdGroup& group = groups[slot.group()];
      // Without momentum nothing is counted: all updates are alike.
      const std::int64_t t = group.momentum == 0 ? 1 : ++slot.counter(kStep);
      const SgdRules& now = rules.get(slot.group(), t, [&] { return rules_of(group, t == 1, step.grad_scale()); });
      if (group.momentum == 0) {
        updates.add(slot, {}, now.plain);
      } else {
        updates.add(slot, {kMomentumBuffer}, now.momentum);
      }
    }
    updates.run();
  }

 private:
  static void check_nesterov(const SgdGroup& group) {
    if (!group.nesterov || (group.momentum > 0 && group.dampening == 0)) return;
    throw sdk::Error("nesterov: needs a momentum above 0 and a dampening of 0.");
  }

  static SgdGroup read(const sdk::Group& group) {
    const SgdGroup numbers{group.number("lr"), group.number("momentum"), group.number("dampening"),
                           group.number("weight_decay"), group.boolean("nesterov")};
    check_nesterov(numbers);
    return numbers;
  }

  /// `first`: the parameter's first update, whose buffer is the gradient itself, without dampening.
  static SgdRules rules_of(const SgdGroup& group, bool first, double grad_scale) {
    const SgdNumbers numbers{.grad_scale = static_cast<float>(grad_scale),
                             .l2 = static_cast<float>(group.weight_decay),
                             .lr = static_cast<float>(group.lr),
                             .keep = first ? 0.0f : static_cast<float>(group.momentum),
                             .take = first ? 1.0f : static_cast<float>(1.0 - group.dampening),
                             .from_buffer = group.nesterov ? static_cast<float>(group.momentum) : 1.0f,
                             .from_gradient = group.nesterov ? 1.0f : 0.0f};
    return {{numbers}, {numbers}};
  }
};

}  // namespace
}  // namespace capstan::optimizers

CAPSTAN_PLUGIN(&capstan::sdk::optimizer<capstan::elements::OnElements<capstan::optimizers::SGD>, "SGD">)
#endif
