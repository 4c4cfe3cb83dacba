// Signum (Bernstein et al. 2018): m = b*m + (1-b)*g;  w -= lr * (sign(m) + decay*w).
#include <capstan/sdk/floats.hpp>
#include <capstan/sdk/optimizer.hpp>
#include <capstan/sdk/parallel.hpp>

namespace {

namespace sdk = capstan::sdk;

constexpr std::int64_t kGrain = 1 << 15;  // elements that one thread should at least have to do

struct Numbers {
  float lr, momentum, weight_decay;
};

class Signum {
 public:
  Signum(const sdk::Host&, const sdk::Params&) {}

  void update(const sdk::Slots& slots, const sdk::Step& step) {
    const auto numbers = step.each_group([](const sdk::Group& group) {
      return Numbers{static_cast<float>(group.number("lr")), static_cast<float>(group.number("momentum")),
                     static_cast<float>(group.number("weight_decay"))};
    });
    for (const sdk::Slot slot : slots) update(slot, numbers[slot.group()], static_cast<float>(step.grad_scale()));
  }

 private:
  static void update(const sdk::Slot& slot, const Numbers& numbers, float grad_scale) {
    float* weights = slot.param();
    float* means = static_cast<float*>(slot.state(0).data);
    const sdk::Values gradients = slot.grad();
    // Elements do not depend on each other, so it does not matter how they are split over threads.
    sdk::parallel_for(0, static_cast<std::int64_t>(slot.numel()), kGrain, [&](std::int64_t begin, std::int64_t end) {
      for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i) {
        const float gradient = sdk::value_at(gradients, i) * grad_scale;
        means[i] = numbers.momentum * means[i] + (1.0f - numbers.momentum) * gradient;
        const float sign = static_cast<float>(means[i] > 0.0f) - static_cast<float>(means[i] < 0.0f);
        weights[i] -= numbers.lr * (sign + numbers.weight_decay * weights[i]);
      }
    });
  }
};

}  // namespace

CAPSTAN_PLUGIN(&capstan::sdk::optimizer<Signum, "Signum">)
