#pragma once

#include "capstan/sdk/optimizer.hpp"
#include "plugins/optimizers/sgd/sgd_kernel.hpp"

namespace capstan::optimizers {

/// The states of the manifest.
enum SgdState : std::size_t { kMomentumBuffer, kStep };

/// A group's numbers, as configured.
struct SgdGroup {
  double lr, momentum, dampening, weight_decay;
  bool nesterov;
};

inline void check_nesterov(const SgdGroup& group) {
  if (!group.nesterov || (group.momentum > 0 && group.dampening == 0)) return;
  throw sdk::Error("nesterov: needs a momentum above 0 and a dampening of 0.");
}

/// Throws sdk::Error for what goes with no group.
inline void check_sgd(const sdk::Params& params) {
  check_nesterov({0, params.number("momentum"), params.number("dampening"), 0, params.boolean("nesterov")});
}

inline SgdGroup read_sgd(const sdk::Group& group) {
  const SgdGroup numbers{group.number("lr"), group.number("momentum"), group.number("dampening"),
                         group.number("weight_decay"), group.boolean("nesterov")};
  check_nesterov(numbers);
  return numbers;
}

/// `first`: the parameter's first update, whose buffer is the gradient itself, without dampening.
inline SgdNumbers sgd_numbers(const SgdGroup& group, bool first, double grad_scale) {
  return {.grad_scale = static_cast<float>(grad_scale),
          .l2 = static_cast<float>(group.weight_decay),
          .lr = static_cast<float>(group.lr),
          .keep = first ? 0.0f : static_cast<float>(group.momentum),
          .take = first ? 1.0f : static_cast<float>(1.0 - group.dampening),
          .from_buffer = group.nesterov ? static_cast<float>(group.momentum) : 1.0f,
          .from_gradient = group.nesterov ? 1.0f : 0.0f};
}

}  // namespace capstan::optimizers
