#include "plugins/optimizers/adafactor/adafactor_on_device.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "capstan/sdk/tensors.hpp"
#include "plugins/optimizers/adafactor/adafactor_group.hpp"

namespace capstan::optimizers {
namespace {

using Shapes = std::vector<std::vector<std::int64_t>>;

/// Numbers of each slot that depend on how many updates the slot had.
std::vector<double> by_step(const sdk::TensorSlots& slots, double (*function)(double t, const AdafactorGroup&),
                            const AdafactorGroup& group) {
  std::vector<double> numbers;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    numbers.push_back(function(static_cast<double>(slots[i].counter(kStep)), group));
  }
  return numbers;
}

/// Moves the mean squares of rows and columns. Returns what the gradients are divided by.
sdk::Tensors roots_of_factors(const sdk::TensorSlots& slots, const sdk::Tensors& squares, const AdafactorGroup& group,
                              const std::vector<double>& fresh) {
  Shapes whole, rows, columns, flat;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const auto shape = slots[i].full_shape();
    const std::int64_t height = shape[shape.size() - 2], width = shape[shape.size() - 1];
    const std::int64_t count = static_cast<std::int64_t>(slots[i].numel()) / (height * width);
    whole.push_back({count, height, width});
    rows.push_back({count, height, 1});
    columns.push_back({count, 1, width});
    flat.push_back({static_cast<std::int64_t>(slots[i].numel())});
  }
  const sdk::Tensors matrices = squares.view(whole);
  sdk::Tensors row_var = slots.state(kRowVar), column_var = slots.state(kColVar);
  row_var.view(rows).lerp_(matrices.mean(-1), fresh);
  column_var.view(columns).lerp_(matrices.mean(-2), fresh);
  slots.store_state(kRowVar, row_var);
  slots.store_state(kColVar, column_var);
  sdk::Tensors share = row_var.view(rows).clone();
  share.div_(row_var.view(rows).mean(-2).clamp_min_(group.least_root));
  sdk::Tensors roots = share.matmul(column_var.view(columns));
  return roots.clamp_min_(group.least_root * group.least_root).sqrt_().view(flat);
}

sdk::Tensors roots_of_variance(const sdk::TensorSlots& slots, const sdk::Tensors& squares, const AdafactorGroup& group,
                               const std::vector<double>& fresh) {
  sdk::Tensors variance = slots.state(kVariance);
  variance.lerp_(squares, fresh);
  slots.store_state(kVariance, variance);
  sdk::Tensors roots = variance.clone();
  return roots.clamp_min_(group.least_root * group.least_root).sqrt_();
}

/// The root mean square of each: tensors of no dimension.
sdk::Tensors root_mean_squares(const sdk::TensorSlots& slots, const sdk::Tensors& values) {
  std::vector<double> factors;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    factors.push_back(1.0 / std::sqrt(static_cast<double>(slots[i].numel())));
  }
  return std::move(values.norm().mul_(factors));
}

void update(const sdk::TensorSlots& slots, bool factored, const AdafactorGroup& group, double grad_scale) {
  if (slots.size() == 0) return;
  sdk::Tensors direction = slots.gradients(group.maximize ? -grad_scale : grad_scale);
  sdk::Tensors squares = direction.clone();
  squares.mul_(direction);
  const std::vector<double> fresh = by_step(
      slots, [](double t, const AdafactorGroup& numbers) { return std::pow(t, numbers.beta2_decay); }, group);
  direction.div_(factored ? roots_of_factors(slots, squares, group, fresh)
                          : roots_of_variance(slots, squares, group, fresh));

  const std::vector<double> relative = by_step(
      slots, [](double t, const AdafactorGroup& numbers) { return std::min(numbers.lr, 1.0 / std::sqrt(t)); }, group);
  sdk::Tensors weights = slots.parameters();
  sdk::Tensors rate = root_mean_squares(slots, weights);
  rate.clamp_min_(group.least_scale).mul_(relative);
  rate.div_(root_mean_squares(slots, direction).mul_(1.0 / group.d).clamp_min_(1.0));
  weights.mul_(1.0 - group.lr * group.weight_decay).add_(direction.mul_(rate), -1.0);
}

}  // namespace

void update_adafactor_on_device(const sdk::Slots& slots, const sdk::Step& step) {
  const auto groups = step.each_group(&AdafactorGroup::read);
  for (const sdk::Slot slot : slots) ++slot.counter(kStep);
  for (const bool factored : {true, false}) {
    const auto lists = sdk::by_group(
        slots, step, [&](const sdk::Slot& slot) { return slot.numel() > 0 && slot.has_state(kVariance) != factored; });
    for (std::size_t i = 0; i < groups.size(); ++i) update(lists[i], factored, groups[i], step.grad_scale());
  }
}

}  // namespace capstan::optimizers
