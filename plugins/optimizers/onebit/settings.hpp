#pragma once

#include <string_view>

#include "capstan/sdk/optimizer.hpp"
#include "plugins/optimizers/onebit/step_kernels.hpp"

namespace capstan::optimizers {

/// Refuses and remarks on the parameters that OneBitAdam, OneBitLamb and ZeroOneAdam have in common.
void check_settings(std::string_view type, const sdk::Host& host, const sdk::Params& params);

/// A group's numbers, as configured and scheduled.
struct OneBitGroup {
  explicit OneBitGroup(const sdk::Group& group);

  AdaptiveNumbers numbers(double grad_scale) const;
  StepRates rates() const;

  double lr, beta1, beta2, eps, weight_decay;
};

/// Throws when a parameter group gives `name` a value of its own: all ranks and groups change their ways together.
void require_same(const sdk::Step& step, const char* name, double value);

}  // namespace capstan::optimizers
