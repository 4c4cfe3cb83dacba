#include <cmath>
#include <cstdint>

#include "capstan/sdk/optimizer.hpp"
#include "plugins/optimizers/adam/adam_kernel.hpp"
#include "plugins/optimizers/common/elementwise.hpp"
#include "plugins/optimizers/common/step_numbers.hpp"

namespace capstan::optimizers {
namespace {

enum State : std::size_t { kExpAvg, kExpAvgSq, kMaxExpAvgSq, kStep };

/// A group's numbers, as configured.
struct AdamGroup {
  double lr, beta1, beta2, eps, weight_decay;
  bool amsgrad;
};

class Adam {
 public:
  Adam(const sdk::Host&, const sdk::Params& params, bool always_decoupled)
      : decoupled_(always_decoupled || params.boolean("adam_w_mode")),
        torch_adam_(params.boolean("torch_adam")),
        bias_correction_(params.boolean("bias_correction")),
        // torch's AdamW decays by 0.01 unless told otherwise, every other form by nothing.
        default_decay_(torch_adam_ && decoupled_ ? 0.01 : 0.0) {
    params.require(torch_adam_ || !params.boolean("amsgrad"), "amsgrad",
                   "true needs \"torch_adam\": true beside it; only torch's form of Adam has AMSGrad.");
    params.require(
        !torch_adam_ || bias_correction_, "bias_correction",
        "false is not possible with \"torch_adam\": true, which always corrects the bias. Remove one of them.");
  }

  void update(const sdk::Slots& slots, const sdk::Step& step) const {
    const auto groups = step.each_group([&](const sdk::Group& group) { return read(group); });
    ElementwiseUpdate update(slots.size());
    StepNumbers<AdamNumbers> numbers;
    for (const sdk::Slot slot : slots) {
      const AdamGroup& group = groups[slot.group()];
      const std::int64_t t = ++slot.counter(kStep);
      const AdamNumbers& now = numbers.get(slot.group(), t, [&] { return numbers_at(group, t, step.grad_scale()); });
      if (group.amsgrad) {
        update.add(slot, {kExpAvg, kExpAvgSq, kMaxExpAvgSq}, &amsgrad_kernel, &now);
      } else {
        update.add(slot, {kExpAvg, kExpAvgSq}, &adam_kernel, &now);
      }
    }
    update.run();
  }

 private:
  AdamGroup read(const sdk::Group& group) const {
    double betas[2];
    group.read("betas", betas, 2);
    return {group.number("lr"),
            betas[0],
            betas[1],
            group.number("eps"),
            group.number_or("weight_decay", default_decay_),
            group.boolean("amsgrad")};
  }

  AdamNumbers numbers_at(const AdamGroup& group, std::int64_t t, double grad_scale) const {
    const double c1 = bias_correction_ ? 1.0 - std::pow(group.beta1, static_cast<double>(t)) : 1.0;
    const double c2 = bias_correction_ ? 1.0 - std::pow(group.beta2, static_cast<double>(t)) : 1.0;
    return {.moments = Moments(grad_scale, decoupled_ ? 0.0 : group.weight_decay, group.beta1, group.beta2),
            .lr = static_cast<float>(group.lr),
            .eps = static_cast<float>(group.eps),
            .decay = static_cast<float>(decoupled_ ? group.weight_decay : 0.0),
            .inverse_c1 = static_cast<float>(1.0 / c1),
            .inverse_sqrt_c2 = static_cast<float>(1.0 / std::sqrt(c2))};
  }

  bool decoupled_;
  bool torch_adam_;
  bool bias_correction_;
  double default_decay_;
};

/// Type "Adam": decoupled decay unless adam_w_mode is false.
class PlainAdam : public Adam {
 public:
  PlainAdam(const sdk::Host& host, const sdk::Params& params) : Adam(host, params, false) {}
};

/// Type "AdamW": decoupled decay always.
class AdamW : public Adam {
 public:
  AdamW(const sdk::Host& host, const sdk::Params& params) : Adam(host, params, true) {}
};

}  // namespace
}  // namespace capstan::optimizers

CAPSTAN_PLUGIN(&capstan::sdk::optimizer<capstan::optimizers::PlainAdam, "Adam">,
               &capstan::sdk::optimizer<capstan::optimizers::AdamW, "AdamW">)
