#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "capstan/sdk/elements/convert.hpp"
#include "capstan/sdk/optimizer.hpp"
#include "plugins/optimizers/adafactor/adafactor_group.hpp"
#include "plugins/optimizers/adafactor/adafactor_on_device.hpp"
#include "plugins/optimizers/adafactor/factored_variance.hpp"

namespace capstan::optimizers {
using namespace elements;
namespace {

/// Adafactor (Shazeer and Stern 2018), as torch has it:
///   scale = max(eps2, rms(p)) * min(lr, 1/sqrt(t));  p -= lr*decay*p;
///   v += t^beta2_decay * (g^2 - v), for matrices as the product of its rows' and columns' means;
///   u = g / sqrt(v);  p -= scale / max(1, rms(u)/d) * u
class Adafactor {
 public:
  Adafactor(const sdk::Host&, const sdk::Params&) {}

  void update(const sdk::Slots& slots, const sdk::Step& step) const {
    if (slots.size() > 0 && !sdk::on_cpu(slots[0].raw()->param)) return update_adafactor_on_device(slots, step);
    const auto groups = step.each_group(&AdafactorGroup::read);
    for (const sdk::Slot slot : slots) update(slot, groups[slot.group()], step.grad_scale());
  }

 private:
  static void update(const sdk::Slot& slot, const AdafactorGroup& group, double grad_scale) {
    const auto t = static_cast<double>(++slot.counter(kStep));
    std::vector<float> direction = gradient_of(slot, group.maximize ? -grad_scale : grad_scale);
    divide_by_root(slot, group, static_cast<float>(std::pow(t, group.beta2_decay)), direction);
    float* weights = slot.param();
    const double scale = std::max(group.least_scale, root_mean_square({weights, slot.numel()}));
    const double relative = std::min(group.lr, 1.0 / std::sqrt(t));
    const double clip = std::max(1.0, root_mean_square(direction) / group.d);
    const auto rate = static_cast<float>(scale * relative / clip);
    const auto keep = static_cast<float>(1.0 - group.lr * group.weight_decay);
    for (std::size_t i = 0; i < slot.numel(); ++i) weights[i] = weights[i] * keep - rate * direction[i];
  }

  static std::vector<float> gradient_of(const sdk::Slot& slot, double factor) {
    std::vector<float> values(slot.numel());
    widen(slot.grad().data, slot.grad().dtype, values.data(), values.size());
    for (float& value : values) value *= static_cast<float>(factor);
    return values;
  }

  /// Moves the mean squares, and divides the gradient by their roots.
  static void divide_by_root(const sdk::Slot& slot, const AdafactorGroup& group, float fresh,
                             std::vector<float>& gradient) {
    const auto least = static_cast<float>(group.least_root);
    if (gradient.empty()) return;
    if (slot.has_state(kVariance)) {
      float* variance = slot.floats(kVariance);
      for (std::size_t i = 0; i < gradient.size(); ++i) {
        variance[i] += fresh * (gradient[i] * gradient[i] - variance[i]);
        gradient[i] /= std::sqrt(std::max(variance[i], least * least));
      }
      return;
    }
    const auto shape = slot.full_shape();
    const auto rows = static_cast<std::size_t>(shape[shape.size() - 2]);
    const auto columns = static_cast<std::size_t>(shape[shape.size() - 1]);
    const Matrices matrices{gradient.size() / (rows * columns), rows, columns};
    move_factors(matrices, gradient.data(), fresh, slot.floats(kRowVar), slot.floats(kColVar));
    factored_update(matrices, slot.floats(kRowVar), slot.floats(kColVar), least, gradient);
  }
};

}  // namespace
}  // namespace capstan::optimizers

CAPSTAN_PLUGIN(&capstan::sdk::optimizer<capstan::optimizers::Adafactor, "Adafactor">)
