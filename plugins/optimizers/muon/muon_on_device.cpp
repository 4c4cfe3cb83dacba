#include "plugins/optimizers/muon/muon_on_device.hpp"

#include <cmath>
#include <optional>
#include <vector>

#include "capstan/sdk/tensors.hpp"

namespace capstan::optimizers {
namespace {

void update_matrices(const sdk::TensorSlots& slots, const MuonGroup& group, double grad_scale,
                     const MuonChoices& choices) {
  sdk::Tensors direction = slots.gradients(grad_scale), momentum = slots.state(kMomentum);
  momentum.lerp_(direction, 1.0 - group.momentum);
  slots.store_state(kMomentum, momentum);
  direction.lerp_(momentum, group.nesterov ? group.momentum : 1.0);

  const double lr = group.lr * choices.muon_factor;
  std::vector<std::vector<std::int64_t>> shapes;
  std::vector<double> rates;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const std::int64_t rows = slots[i].full_shape()[0], columns = static_cast<std::int64_t>(slots[i].numel()) / rows;
    shapes.push_back({rows, columns});
    rates.push_back(-lr * choices.shape_factor(static_cast<double>(rows), static_cast<double>(columns)));
  }
  sdk::Tensors weights = slots.parameters().view(shapes);
  weights.mul_(1.0 - lr * group.weight_decay);
  weights.add_(group.newton_schulz(choices.gram).orthogonal(direction.view(shapes)), rates);
}

/// The formula of muon_kernel.cpp.
void update_others(const sdk::TensorSlots& slots, MuonState squares_state, const MuonGroup& group, double grad_scale,
                   const MuonChoices& choices) {
  const sdk::Tensors gradients = slots.gradients(grad_scale);
  sdk::Tensors average = slots.state(kMomentum), squares = slots.state(squares_state);
  average.lerp_(gradients, 1.0 - group.beta1);
  squares.mul_(group.beta2).addcmul_(gradients, gradients, 1.0 - group.beta2);
  slots.store_state(kMomentum, average);
  slots.store_state(squares_state, squares);

  const double lr = group.lr * choices.adam_factor;
  std::vector<double> inverse_roots, rates;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const auto step = static_cast<double>(slots[i].counter(kStep));
    inverse_roots.push_back(1.0 / std::sqrt(1.0 - std::pow(group.beta2, step)));
    rates.push_back(-lr / (1.0 - std::pow(group.beta1, step)));
  }
  sdk::Tensors divisors = squares.sqrt();
  divisors.mul_(inverse_roots).add_(group.adam_eps);
  slots.parameters().mul_(1.0 - lr * group.weight_decay).addcdiv_(average, divisors, rates);
}

}  // namespace

void update_muon_on_device(const sdk::Slots& slots, const sdk::Step& step, const MuonChoices& choices) {
  const auto groups = step.each_group(&MuonGroup::read);
  for (const sdk::Slot slot : slots) ++slot.counter(kStep);
  // Slots whose squares are in that state; without one, the matrices.
  const auto lists = [&](std::optional<MuonState> squares) {
    return sdk::by_group(slots, step,
                         [&](const sdk::Slot& slot) { return slot.numel() > 0 && squares_of(slot) == squares; });
  };
  const auto matrices = lists(std::nullopt);
  for (std::size_t i = 0; i < groups.size(); ++i) {
    if (matrices[i].size() > 0) update_matrices(matrices[i], groups[i], step.grad_scale(), choices);
  }
  for (const MuonState state : kStatesOfSquares) {
    const auto others = lists(state);
    for (std::size_t i = 0; i < groups.size(); ++i) {
      if (others[i].size() > 0) update_others(others[i], state, groups[i], step.grad_scale(), choices);
    }
  }
}

}  // namespace capstan::optimizers
