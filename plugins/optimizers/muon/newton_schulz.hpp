#pragma once

#include <cstdint>

#include "plugins/optimizers/muon/matrix_product.hpp"

namespace capstan::optimizers {

struct NewtonSchulz {
  float a, b, c;
  double eps;          // the least norm that a matrix is divided by
  std::int64_t steps;  // iterations
  bool gram;           // iterate on the Gram matrix

  /// The matrix nearest to an orthogonal one, roughly: its singular values go to about 1. In float32.
  Matrix orthogonal(Matrix matrix) const;

 private:
  Matrix iterated(Matrix x) const;
  Matrix iterated_on_gram(Matrix x) const;
};

}  // namespace capstan::optimizers
