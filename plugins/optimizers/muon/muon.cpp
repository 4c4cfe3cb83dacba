#include <cmath>
#include <cstdint>
#include <deque>

#include "capstan/sdk/elements/elementwise.hpp"
#include "capstan/sdk/floats.hpp"
#include "capstan/sdk/optimizer.hpp"
#include "capstan/sdk/parallel.hpp"
#include "plugins/optimizers/muon/muon_group.hpp"
#include "plugins/optimizers/muon/muon_kernel.hpp"
#include "plugins/optimizers/muon/muon_on_device.hpp"

namespace capstan::optimizers {
namespace {

constexpr std::int64_t kGrain = 8192;  // elements that one thread should at least have to do

class Muon {
 public:
  Muon(const sdk::Host&, const sdk::Params& params) : choices_(params) {}

  void update(const sdk::Slots& slots, const sdk::Step& step) const {
    if (slots.size() > 0 && !sdk::on_cpu(slots[0].raw()->param)) return update_muon_on_device(slots, step, choices_);
    const auto groups = step.each_group(&MuonGroup::read);
    ElementwiseUpdate others(slots.size());
    std::deque<MuonAdamNumbers> numbers;
    for (const sdk::Slot slot : slots) {
      const MuonGroup& group = groups[slot.group()];
      const std::int64_t t = ++slot.counter(kStep);
      if (const auto squares = squares_of(slot)) {
        numbers.push_back(adam_numbers(group, t, step.grad_scale()));
        others.add(slot, {kMomentum, *squares}, muon_adam_kernel(), &numbers.back());
      } else {
        update_matrix(slot, group, static_cast<float>(step.grad_scale()));
      }
    }
    others.run();
  }

 private:
  MuonAdamNumbers adam_numbers(const MuonGroup& group, std::int64_t t, double grad_scale) const {
    const auto step = static_cast<double>(t);
    const double lr = group.lr * choices_.adam_factor;
    return {.moments = Moments(grad_scale, 0.0, group.beta1, group.beta2),
            .inverse_root = static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(group.beta2, step))),
            .eps = static_cast<float>(group.adam_eps),
            .decay = static_cast<float>(lr * group.weight_decay),
            .rate = static_cast<float>(lr / (1.0 - std::pow(group.beta1, step)))};
  }

  /// Muon (Jordan et al. 2024), as torch has it:
  ///   m += (1-mu)*(g - m);  u = orthogonal(nesterov ? g + mu*(m - g) : m);  p -= lr*decay*p;  p -= adjusted lr * u
  void update_matrix(const sdk::Slot& slot, const MuonGroup& group, float grad_scale) const {
    if (slot.numel() == 0) return;
    const auto rows = static_cast<std::size_t>(slot.full_shape()[0]);
    const Matrix direction = group.newton_schulz(choices_.gram).orthogonal(momentum_of(slot, group, rows, grad_scale));
    const double lr = group.lr * choices_.muon_factor;
    const auto keep = static_cast<float>(1.0 - lr * group.weight_decay);
    const auto rate = static_cast<float>(
        lr * choices_.shape_factor(static_cast<double>(direction.rows), static_cast<double>(direction.columns)));
    float* weights = slot.param();
    sdk::parallel_for(0, static_cast<std::int64_t>(slot.numel()), kGrain, [&](std::int64_t begin, std::int64_t end) {
      for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i) {
        weights[i] = weights[i] * keep - rate * direction.values[i];
      }
    });
  }

  /// Moves the momentum, and returns what is to be made orthogonal.
  static Matrix momentum_of(const sdk::Slot& slot, const MuonGroup& group, std::size_t rows, float grad_scale) {
    Matrix blend(rows, slot.numel() / rows);
    const sdk::Values gradients = slot.grad();
    float* momentum = slot.floats(kMomentum);
    const auto mu = static_cast<float>(group.momentum), fresh = static_cast<float>(1.0 - group.momentum);
    sdk::parallel_for(0, static_cast<std::int64_t>(slot.numel()), kGrain, [&](std::int64_t begin, std::int64_t end) {
      for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i) {
        const float gradient = sdk::value_at(gradients, i) * grad_scale;
        momentum[i] += fresh * (gradient - momentum[i]);
        blend.values[i] = group.nesterov ? gradient + mu * (momentum[i] - gradient) : momentum[i];
      }
    });
    return blend;
  }

  MuonChoices choices_;
};

}  // namespace
}  // namespace capstan::optimizers

CAPSTAN_PLUGIN(&capstan::sdk::optimizer<capstan::optimizers::Muon, "Muon">)
