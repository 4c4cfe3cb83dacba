#pragma once

#include <cstddef>
#include <vector>

namespace capstan::optimizers {

/// A matrix in rows, without gaps.
struct Matrix {
  Matrix(std::size_t row_count, std::size_t column_count)
      : rows(row_count), columns(column_count), values(row_count * column_count) {}

  float* row(std::size_t index) { return values.data() + index * columns; }
  const float* row(std::size_t index) const { return values.data() + index * columns; }
  Matrix transposed() const;

  std::size_t rows, columns;
  std::vector<float> values;
};

/// product_scale * a * b + added_scale * added, on LibTorch's threads. Each element is one sum in the order of a's
/// columns, so that its bits depend neither on the number of threads nor on the width of vectors.
Matrix product(const Matrix& a, const Matrix& b, float product_scale = 1.0f, const Matrix* added = nullptr,
               float added_scale = 0.0f);

}  // namespace capstan::optimizers
