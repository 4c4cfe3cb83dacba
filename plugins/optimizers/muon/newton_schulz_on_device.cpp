#include <algorithm>
#include <utility>
#include <vector>

#include "plugins/optimizers/muon/newton_schulz.hpp"

namespace capstan::optimizers {
namespace {

/// Each matrix with no more rows than columns, transposed where it has more. Transposed twice, the matrix it was.
sdk::Tensors lying(const sdk::Tensors& matrices, const std::vector<bool>& standing) {
  const sdk::Tensors transposed = matrices.transposed();
  sdk::Tensors list;
  for (std::size_t i = 0; i < matrices.size(); ++i) list.push_back(standing[i] ? transposed[i] : matrices[i]);
  return list;
}

}  // namespace

sdk::Tensors NewtonSchulz::orthogonal(sdk::Tensors matrices) const {
  std::vector<bool> standing;
  for (const auto& matrix : matrices) standing.push_back(matrix.size(0) > matrix.size(1));
  sdk::Tensors x = lying(matrices, standing);
  x.div_(matrices.norm().clamp_min_(eps));
  x = gram ? iterated_on_gram(std::move(x)) : iterated(std::move(x));
  return lying(x, standing);
}

sdk::Tensors NewtonSchulz::polynomial_of(const sdk::Tensors& squares) const {
  sdk::Tensors polynomial = squares.matmul(squares);
  polynomial.mul_(c).add_(squares, b);
  return polynomial;
}

sdk::Tensors NewtonSchulz::iterated(sdk::Tensors x) const {
  for (std::int64_t step = 0; step < steps; ++step) {
    sdk::Tensors next = polynomial_of(x.matmul(x.transposed())).matmul(x);
    x = next.add_(x, a);
  }
  return x;
}

sdk::Tensors NewtonSchulz::iterated_on_gram(sdk::Tensors x) const {
  for (std::int64_t done = 0; done < steps; done += kGramSteps) {
    sdk::Tensors square = x.matmul(x.transposed()), all;
    for (std::int64_t step = done; step < std::min(done + kGramSteps, steps); ++step) {
      const sdk::Tensors polynomial = polynomial_of(square);
      polynomial.diagonal().add_(a);
      all = all.empty() ? polynomial : polynomial.matmul(all);
      square = polynomial.matmul(square).matmul(polynomial);
    }
    x = all.matmul(x);
  }
  return x;
}

}  // namespace capstan::optimizers
