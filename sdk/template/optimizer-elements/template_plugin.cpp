#include <capstan/sdk/elements.hpp>

CAPSTAN_RULES

/// mean = momentum * mean + (1 - momentum) * g;  p -= lr * (sign(mean) + weight_decay * p)
/// State: exp_avg.
struct TemplatePluginRule {
  static constexpr int kStates = 1;
  float grad_scale, lr, momentum, weight_decay;

  template <class V>
  CAPSTAN_RULE void operator()(V& p, V grad, V* state) const {
    state[0] = mul_add(V(momentum), state[0], (1.0f - momentum) * (grad * grad_scale));
    const V sign = select(state[0] == V(0.0f), V(0.0f), copy_sign(V(1.0f), state[0]));
    p = neg_mul_add(V(lr), mul_add(V(weight_decay), p, sign), p);
  }
};
CAPSTAN_RULE_KERNEL(TemplatePluginRule)

CAPSTAN_RULES_END

#if CAPSTAN_ONCE
CAPSTAN_RULE_EXPORT(TemplatePluginRule)

namespace {

namespace sdk = capstan::sdk;

class TemplatePlugin {
 public:
  // Parameters were checked against plugin.toml; check here only what it cannot say.
  TemplatePlugin(const sdk::Host&, const sdk::Params&) {}

  /// One update may come in several calls with other slots, so keep nothing between calls but what plugin.toml declares
  /// as state.
  void update(const sdk::Slots& slots, const sdk::Step& step, capstan::elements::ElementUpdates& updates) const {
    const auto rules = step.each_group([&](const sdk::Group& group) {
      return capstan::elements::TemplatePluginRule{
          static_cast<float>(step.grad_scale()), static_cast<float>(group.number("lr")),
          static_cast<float>(group.number("momentum")), static_cast<float>(group.number("weight_decay"))};
    });
    for (const sdk::Slot slot : slots) updates.add(slot, {0}, rules[slot.group()]);  // {0}: exp_avg
    updates.run();
  }
};

}  // namespace

CAPSTAN_PLUGIN(&capstan::sdk::optimizer<capstan::elements::OnElements<TemplatePlugin>, "TemplatePlugin">)
#endif
