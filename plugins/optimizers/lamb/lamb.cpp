#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <span>

#include "capstan/sdk/elements/elementwise.hpp"
#include "capstan/sdk/optimizer.hpp"
#include "plugins/optimizers/common/moment_group.hpp"
#include "plugins/optimizers/lamb/lamb_kernel.hpp"

namespace capstan::optimizers {
namespace {

enum State : std::size_t { kExpAvg, kExpAvgSq, kStep, kTrust };
enum Measure : std::size_t { kWeights, kDirections };

struct LambGroup : MomentGroup {
  double min_coeff, max_coeff;
  bool bias_correction, eps_inside_sqrt;
};

class Lamb {
 public:
  static constexpr std::size_t kMeasures = 2;

  Lamb(const sdk::Host&, const sdk::Params& params) {
    params.require(!params.boolean("amsgrad"), "amsgrad", "Lamb has no AMSGrad form; remove it or set it to false.");
    params.require(params.number("min_coeff") <= params.number("max_coeff"), "min_coeff", "must not exceed max_coeff.");
  }

  void measure(const sdk::Slots& slots, const sdk::Step& step, std::span<double> partials) const {
    const auto numbers = step.each_group([&](const sdk::Group& group) { return numbers_of(read(group), step, 0.0); });
    ElementwiseUpdate measured(slots.size());
    for (const sdk::Slot slot : slots) {
      measured.add(slot, {kExpAvg, kExpAvgSq}, &lamb_measure_kernel, &numbers[slot.group()]);
    }
    measured.measure(partials, kMeasures);
  }

  void update(const sdk::Slots& slots, const sdk::Step& step) const {
    const auto groups = step.each_group(&read);
    ElementwiseUpdate update(slots.size());
    std::deque<LambNumbers> numbers;
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const sdk::Slot slot = slots[i];
      const LambGroup& group = groups[slot.group()];
      const std::int64_t t = ++slot.counter(kStep);
      const double trust = trust_ratio(group, step.total(i, kWeights), step.total(i, kDirections));
      slot.number(kTrust) = static_cast<float>(trust);
      numbers.push_back(numbers_of(group, step, rate_at(group, t) * trust));
      update.add(slot, {kExpAvg, kExpAvgSq}, &lamb_kernel, &numbers.back());
    }
    update.run();
  }

 private:
  static LambGroup read(const sdk::Group& group) {
    return {MomentGroup::of(group), group.number("min_coeff"), group.number("max_coeff"),
            group.boolean("bias_correction"), group.boolean("eps_inside_sqrt")};
  }

  /// Bias correction enters here alone, not the ratio.
  static double rate_at(const LambGroup& group, std::int64_t t) {
    if (!group.bias_correction) return group.lr;
    const auto step = static_cast<double>(t);
    return group.lr * std::sqrt(1.0 - std::pow(group.beta2, step)) / (1.0 - std::pow(group.beta1, step));
  }

  static double trust_ratio(const LambGroup& group, double weight_squares, double direction_squares) {
    if (weight_squares == 0 || direction_squares == 0) return 1.0;
    return std::min(std::max(std::sqrt(weight_squares / direction_squares), group.min_coeff), group.max_coeff);
  }

  static LambNumbers numbers_of(const LambGroup& group, const sdk::Step& step, double rate) {
    const auto eps = static_cast<float>(group.eps);
    return {.moments = Moments(step.grad_scale(), 0.0, group.beta1, group.beta2),
            .eps_inside = group.eps_inside_sqrt ? eps : 0.0f,
            .eps_outside = group.eps_inside_sqrt ? 0.0f : eps,
            .decay = static_cast<float>(group.weight_decay),
            .rate = static_cast<float>(rate)};
  }
};

}  // namespace
}  // namespace capstan::optimizers

CAPSTAN_PLUGIN(&capstan::sdk::optimizer<capstan::optimizers::Lamb, "Lamb">)
