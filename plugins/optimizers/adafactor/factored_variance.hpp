#pragma once

#include <cstddef>
#include <span>

namespace capstan::optimizers {

/// A parameter of two dimensions or more: matrices one after the other.
struct Matrices {
  std::size_t count, rows, columns;  // rows and columns of each matrix
};

/// Moves the mean squares of rows and columns by `fresh` towards those of the gradient. Sums are in double precision
/// and in the order of elements, whatever the number of threads.
void move_factors(const Matrices& matrices, const float* gradient, float fresh, float* row_var, float* col_var);

/// The update before it is scaled: gradient / sqrt(row_var * col_var / mean of the matrix's row_var), where neither the
/// mean nor the root is below `least`.
void factored_update(const Matrices& matrices, const float* row_var, const float* col_var, float least,
                     std::span<float> gradient);

/// The root of the mean square, in an order of its own; 0 for no values.
double root_mean_square(std::span<const float> values);

}  // namespace capstan::optimizers
