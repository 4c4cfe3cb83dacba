#include "plugins/optimizers/muon/newton_schulz.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "capstan/sdk/parallel.hpp"

namespace capstan::optimizers {
namespace {

/// The Frobenius norm: each row's squares in order, then the rows in order, whatever thread has a row.
double norm_of(const Matrix& matrix) {
  std::vector<double> squares(matrix.rows);
  sdk::parallel_for(0, static_cast<std::int64_t>(matrix.rows), 16, [&](std::int64_t begin, std::int64_t end) {
    for (auto r = static_cast<std::size_t>(begin); r < static_cast<std::size_t>(end); ++r) {
      for (std::size_t c = 0; c < matrix.columns; ++c) {
        const double value = matrix.row(r)[c];
        squares[r] += value * value;
      }
    }
  });
  double sum = 0;
  for (const double row : squares) sum += row;
  return std::sqrt(sum);
}

void add_to_diagonal(Matrix& matrix, float value) {
  for (std::size_t i = 0; i < matrix.rows; ++i) matrix.row(i)[i] += value;
}

}  // namespace

Matrix NewtonSchulz::orthogonal(Matrix matrix) const {
  const bool tall = matrix.rows > matrix.columns;
  Matrix x = tall ? matrix.transposed() : std::move(matrix);
  const auto factor = static_cast<float>(1.0 / std::max(norm_of(x), eps));
  for (float& value : x.values) value *= factor;
  x = gram ? iterated_on_gram(std::move(x)) : iterated(std::move(x));
  return tall ? x.transposed() : x;
}

// x = a x + (b A + c A^2) x  with A = x x^T
Matrix NewtonSchulz::iterated(Matrix x) const {
  for (std::int64_t step = 0; step < steps; ++step) {
    const Matrix square = product(x, x.transposed());
    const Matrix polynomial = product(square, square, c, &square, b);
    x = product(polynomial, x, 1.0f, &x, a);
  }
  return x;
}

// The same, as all the polynomials P = a I + b A + c A^2 commute: with Q the product of them, x = Q x and A = P A P.
Matrix NewtonSchulz::iterated_on_gram(Matrix x) const {
  for (std::int64_t done = 0; done < steps; done += kGramSteps) {
    Matrix square = product(x, x.transposed()), all(square.rows, square.rows);
    add_to_diagonal(all, 1.0f);
    for (std::int64_t step = done; step < std::min(done + kGramSteps, steps); ++step) {
      Matrix polynomial = product(square, square, c, &square, b);
      add_to_diagonal(polynomial, a);
      all = product(polynomial, all);
      square = product(product(polynomial, square), polynomial);
    }
    x = product(all, x);
  }
  return x;
}

}  // namespace capstan::optimizers
