#pragma once

#include "capstan/sdk/elements/float_rules.hpp"
#include "plugins/optimizers/common/moment_rules.hpp"

namespace capstan::optimizers {

/// Sums that a step's size follows from.
struct LayerSums {
  double weights = 0;     // squares of p
  double gradients = 0;   // squares of m / (sqrt(v) + eps)
  double directions = 0;  // squares of m / (sqrt(v) + eps) + decay*p
  float factor = 0;       // greatest (sqrt(v) + eps) / (sqrt(fresh) + eps)

  CAPSTAN_RULE void add(const LayerSums& other) {
    weights += other.weights;
    gradients += other.gradients;
    directions += other.directions;
    factor = factor < other.factor ? other.factor : factor;
  }
};

}  // namespace capstan::optimizers
