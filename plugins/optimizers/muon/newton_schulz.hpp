#pragma once

#include <cstdint>

#include "capstan/sdk/tensors.hpp"
#include "plugins/optimizers/muon/matrix_product.hpp"

namespace capstan::optimizers {

/// Beyond so many iterations on one Gram matrix the roundings of its smallest eigenvalues, which an iteration
/// multiplies by up to 12, would show.
constexpr std::int64_t kGramSteps = 4;

struct NewtonSchulz {
  float a, b, c;
  double eps;          // the least norm that a matrix is divided by
  std::int64_t steps;  // iterations
  bool gram;           // iterate on the Gram matrix

  /// The matrix nearest to an orthogonal one, roughly: its singular values go to about 1. In float32.
  Matrix orthogonal(Matrix matrix) const;
  /// Does so with each matrix of a list, by LibTorch's operators on the list's device. May write over the list's
  /// values.
  sdk::Tensors orthogonal(sdk::Tensors matrices) const;

 private:
  sdk::Tensors iterated(sdk::Tensors x) const;
  sdk::Tensors iterated_on_gram(sdk::Tensors x) const;
  /// b A + c A^2
  sdk::Tensors polynomial_of(const sdk::Tensors& squares) const;
  Matrix iterated(Matrix x) const;
  Matrix iterated_on_gram(Matrix x) const;
};

}  // namespace capstan::optimizers
