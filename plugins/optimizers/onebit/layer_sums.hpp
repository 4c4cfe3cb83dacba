#pragma once

#include <cstddef>

#include "capstan/sdk/elements/everywhere.hpp"

namespace capstan::elements {

/// Sums of a rule that measures a layer.
enum LayerSum : std::size_t { kWeights, kGradients, kDirections };

}  // namespace capstan::elements

namespace capstan::optimizers {
using namespace elements;

/// Sums that a step's size follows from.
struct LayerSums {
  double weights = 0;     // squares of p
  double gradients = 0;   // squares of m / (sqrt(v) + eps)
  double directions = 0;  // squares of m / (sqrt(v) + eps) + decay*p
  float factor = 0;       // greatest (sqrt(v) + eps) / (sqrt(fresh) + eps)

  CAPSTAN_EVERYWHERE void add(const LayerSums& other) {
    weights += other.weights;
    gradients += other.gradients;
    directions += other.directions;
    raise(other.factor);
  }

  // As rules call them.
  CAPSTAN_EVERYWHERE void add(std::size_t k, float a, float b) {
    const double product = static_cast<double>(a) * static_cast<double>(b);
    (k == kWeights ? weights : k == kGradients ? gradients : directions) += product;
  }
  CAPSTAN_EVERYWHERE void raise(float value) { factor = factor < value ? value : factor; }
};

}  // namespace capstan::optimizers
