// AdamW as it is published, and with one mistake each that is easily made. The comparison with the peer must accept the
// first and refuse the others.

#include <cmath>
#include <cstdint>

#include "capstan/sdk/floats.hpp"
#include "capstan/sdk/optimizer.hpp"

namespace {

namespace sdk = capstan::sdk;

enum class Mistake { kNone, kEpsInsideRoot, kDecayAfterUpdate };
enum State : std::size_t { kExpAvg, kExpAvgSq, kStep };

/// A group's numbers at one step, in float64: c1 and c2 are 1 - beta^t.
struct Numbers {
  double lr, beta1, beta2, eps, decay;
};

/// p -= lr * (decay * p + (m / c1) / (sqrt(v / c2) + eps)), but for the mistake.
template <Mistake kMistake>
double updated(double p, double m, double v, double c1, double c2, const Numbers& n) {
  const double denominator =
      kMistake == Mistake::kEpsInsideRoot ? std::sqrt(v / c2 + n.eps * n.eps) : std::sqrt(v / c2) + n.eps;
  const double moved = p - n.lr * (m / c1) / denominator;
  return moved - n.lr * n.decay * (kMistake == Mistake::kDecayAfterUpdate ? moved : p);
}

template <Mistake kMistake>
class AdamW {
 public:
  AdamW(const sdk::Host&, const sdk::Params&) {}

  void update(const sdk::Slots& slots, const sdk::Step& step) const {
    const auto groups = step.each_group([](const sdk::Group& group) {
      double betas[2];
      group.read("betas", betas, 2);
      return Numbers{group.number("lr"), betas[0], betas[1], group.number("eps"), group.number("weight_decay")};
    });
    for (const sdk::Slot slot : slots) update(slot, groups[slot.group()], step.grad_scale());
  }

 private:
  static void update(const sdk::Slot& slot, const Numbers& n, double grad_scale) {
    const auto t = static_cast<double>(++slot.counter(kStep));
    const double c1 = 1 - std::pow(n.beta1, t), c2 = 1 - std::pow(n.beta2, t);
    float* p = slot.param();
    float* m = slot.floats(kExpAvg);
    float* v = slot.floats(kExpAvgSq);
    const sdk::Values gradients = slot.grad();
    for (std::size_t i = 0; i < slot.numel(); ++i) {
      const double g = sdk::value_at(gradients, i) * grad_scale;
      m[i] = static_cast<float>(n.beta1 * m[i] + (1 - n.beta1) * g);
      v[i] = static_cast<float>(n.beta2 * v[i] + (1 - n.beta2) * g * g);
      p[i] = static_cast<float>(updated<kMistake>(p[i], m[i], v[i], c1, c2, n));
    }
  }
};

}  // namespace

CAPSTAN_PLUGIN(&capstan::sdk::optimizer<AdamW<Mistake::kNone>, "AdamWAsPublished">,
               &capstan::sdk::optimizer<AdamW<Mistake::kEpsInsideRoot>, "AdamWEpsInsideRoot">,
               &capstan::sdk::optimizer<AdamW<Mistake::kDecayAfterUpdate>, "AdamWDecayAfterUpdate">)
