#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

/// Brings a matrix of `rows` rows near to the orthogonal one with the same singular vectors, by the Newton-Schulz
/// iteration X = 1.5 X - 0.5 (X X') X. A matrix of zeros stays as it is.
inline void template_plugin_orthogonalize(std::vector<float>& matrix, std::size_t rows, int steps) {
  double length = 0;
  for (const float value : matrix) length += static_cast<double>(value) * value;
  if (length == 0) return;
  // Singular values from 0 to 1 are where the iteration converges.
  for (float& value : matrix) value = static_cast<float>(value / std::sqrt(length));
  const std::size_t columns = matrix.size() / rows;
  std::vector<float> products(rows * rows), next(matrix.size());
  for (int step = 0; step < steps; ++step) {
    for (std::size_t i = 0; i < rows; ++i) {
      for (std::size_t j = 0; j < rows; ++j) {
        float sum = 0;
        for (std::size_t k = 0; k < columns; ++k) sum += matrix[i * columns + k] * matrix[j * columns + k];
        products[i * rows + j] = sum;
      }
    }
    for (std::size_t i = 0; i < matrix.size(); ++i) next[i] = 1.5f * matrix[i];
    for (std::size_t i = 0; i < rows; ++i) {
      for (std::size_t j = 0; j < rows; ++j) {
        const float factor = 0.5f * products[i * rows + j];
        for (std::size_t k = 0; k < columns; ++k) next[i * columns + k] -= factor * matrix[j * columns + k];
      }
    }
    matrix.swap(next);
  }
}
