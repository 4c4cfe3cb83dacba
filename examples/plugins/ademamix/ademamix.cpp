// AdEMAMix, written once for the CPU and for GPUs.
#include <capstan/sdk/elements.hpp>

CAPSTAN_RULES

/// Pagliardini, Ablin and Grangier, "The AdEMAMix Optimizer: Better, Faster, Older" (2024), without its warm-ups:
///   m1 = b1*m1 + (1-b1)*g;  m2 = b3*m2 + (1-b3)*g;  v = b2*v + (1-b2)*g^2;
///   p -= lr * ((m1/(1-b1^t) + alpha*m2) / (sqrt(v/(1-b2^t)) + eps) + decay*p)
struct AdemamixRule {
  static constexpr int kStates = 3;
  float grad_scale, lr, alpha, eps, decay;
  float beta1, beta2, beta3;
  float inverse_c1, inverse_sqrt_c2;  // 1 / (1 - b1^t), 1 / sqrt(1 - b2^t)

  template <class V>
  CAPSTAN_RULE void operator()(V& p, V grad, V* state) const {
    V &fast = state[0], &squares = state[1], &slow = state[2];
    const V g = grad * grad_scale;
    fast = mul_add(V(beta1), fast, (1.0f - beta1) * g);
    squares = mul_add(V(beta2), squares, (1.0f - beta2) * (g * g));
    slow = mul_add(V(beta3), slow, (1.0f - beta3) * g);
    const V ahead = mul_add(V(alpha), slow, fast * inverse_c1);
    const V root = mul_add(sqrt(squares), V(inverse_sqrt_c2), V(eps));
    p = neg_mul_add(V(lr), mul_add(V(decay), p, ahead / root), p);
  }
};
CAPSTAN_RULE_KERNEL(AdemamixRule)

CAPSTAN_RULES_END

#if CAPSTAN_ONCE
#include <capstan/sdk/elements/step_numbers.hpp>
#include <cmath>

CAPSTAN_RULE_EXPORT(AdemamixRule)

namespace {

namespace sdk = capstan::sdk;
using capstan::elements::AdemamixRule;

/// The states of the manifest.
enum State : std::size_t { kFast, kSquares, kSlow, kStep };

struct Numbers {
  double lr, alpha, eps, weight_decay, betas[3];
};

class AdEMAMix {
 public:
  AdEMAMix(const sdk::Host&, const sdk::Params&) {}

  void update(const sdk::Slots& slots, const sdk::Step& step, capstan::elements::ElementUpdates& updates) const {
    const auto groups = step.each_group(&read);
    capstan::elements::StepNumbers<AdemamixRule> rules;
    for (const sdk::Slot slot : slots) {
      const Numbers& group = groups[slot.group()];
      const std::int64_t t = ++slot.counter(kStep);
      updates.add(slot, {kFast, kSquares, kSlow},
                  rules.get(slot.group(), t, [&] { return rule_at(group, t, step.grad_scale()); }));
    }
    updates.run();
  }

 private:
  static Numbers read(const sdk::Group& group) {
    Numbers numbers{group.number("lr"), group.number("alpha"), group.number("eps"), group.number("weight_decay"), {}};
    group.read("betas", numbers.betas, 3);
    return numbers;
  }

  static AdemamixRule rule_at(const Numbers& group, std::int64_t t, double grad_scale) {
    const auto step = static_cast<double>(t);
    return {.grad_scale = static_cast<float>(grad_scale),
            .lr = static_cast<float>(group.lr),
            .alpha = static_cast<float>(group.alpha),
            .eps = static_cast<float>(group.eps),
            .decay = static_cast<float>(group.weight_decay),
            .beta1 = static_cast<float>(group.betas[0]),
            .beta2 = static_cast<float>(group.betas[1]),
            .beta3 = static_cast<float>(group.betas[2]),
            .inverse_c1 = static_cast<float>(1.0 / (1.0 - std::pow(group.betas[0], step))),
            .inverse_sqrt_c2 = static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(group.betas[1], step)))};
  }
};

}  // namespace

CAPSTAN_PLUGIN(&capstan::sdk::optimizer<capstan::elements::OnElements<AdEMAMix>, "AdEMAMix">)
#endif
