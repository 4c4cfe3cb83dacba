#include "plugins/optimizers/adafactor/factored_variance.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "capstan/sdk/parallel.hpp"

namespace capstan::optimizers {
namespace {

constexpr std::size_t kUnit = 8192;       // elements that one thread takes at once
constexpr std::size_t kColumnUnit = 256;  // columns whose sums stay in the first-level cache

double square_of(float value) { return static_cast<double>(value) * static_cast<double>(value); }

float moved(float value, double target, float fresh) { return value + fresh * (static_cast<float>(target) - value); }

/// Rows that one thread should at least have to do.
std::int64_t row_grain(const Matrices& matrices) {
  return static_cast<std::int64_t>(std::max<std::size_t>(1, kUnit / matrices.columns));
}

void move_rows(const Matrices& matrices, const float* gradient, float fresh, float* row_var) {
  const auto rows = static_cast<std::int64_t>(matrices.count * matrices.rows);
  sdk::parallel_for(0, rows, row_grain(matrices), [&](std::int64_t begin, std::int64_t end) {
    for (auto r = static_cast<std::size_t>(begin); r < static_cast<std::size_t>(end); ++r) {
      const float* row = gradient + r * matrices.columns;
      double sum = 0;
      for (std::size_t c = 0; c < matrices.columns; ++c) sum += square_of(row[c]);
      row_var[r] = moved(row_var[r], sum / static_cast<double>(matrices.columns), fresh);
    }
  });
}

void move_columns(const Matrices& matrices, const float* gradient, float fresh, float* col_var) {
  const std::size_t units = (matrices.columns + kColumnUnit - 1) / kColumnUnit;
  sdk::parallel_for(0, static_cast<std::int64_t>(matrices.count * units), 1, [&](std::int64_t begin, std::int64_t end) {
    for (auto unit = static_cast<std::size_t>(begin); unit < static_cast<std::size_t>(end); ++unit) {
      const std::size_t matrix = unit / units, first = unit % units * kColumnUnit;
      const std::size_t count = std::min(kColumnUnit, matrices.columns - first);
      double sums[kColumnUnit] = {};
      for (std::size_t r = 0; r < matrices.rows; ++r) {
        const float* row = gradient + (matrix * matrices.rows + r) * matrices.columns + first;
        for (std::size_t c = 0; c < count; ++c) sums[c] += square_of(row[c]);
      }
      float* to = col_var + matrix * matrices.columns + first;
      for (std::size_t c = 0; c < count; ++c) {
        to[c] = moved(to[c], sums[c] / static_cast<double>(matrices.rows), fresh);
      }
    }
  });
}

}  // namespace

void move_factors(const Matrices& matrices, const float* gradient, float fresh, float* row_var, float* col_var) {
  move_rows(matrices, gradient, fresh, row_var);
  move_columns(matrices, gradient, fresh, col_var);
}

void factored_update(const Matrices& matrices, const float* row_var, const float* col_var, float least,
                     std::span<float> gradient) {
  std::vector<float> means(matrices.count);
  for (std::size_t matrix = 0; matrix < matrices.count; ++matrix) {
    double sum = 0;
    for (std::size_t r = 0; r < matrices.rows; ++r) sum += row_var[matrix * matrices.rows + r];
    means[matrix] = std::max(static_cast<float>(sum / static_cast<double>(matrices.rows)), least);
  }
  const auto rows = static_cast<std::int64_t>(matrices.count * matrices.rows);
  sdk::parallel_for(0, rows, row_grain(matrices), [&](std::int64_t begin, std::int64_t end) {
    for (auto r = static_cast<std::size_t>(begin); r < static_cast<std::size_t>(end); ++r) {
      const std::size_t matrix = r / matrices.rows;
      const float* columns = col_var + matrix * matrices.columns;
      float* row = gradient.data() + r * matrices.columns;
      for (std::size_t c = 0; c < matrices.columns; ++c) {
        row[c] /= std::sqrt(std::max(row_var[r] * columns[c] / means[matrix], least * least));
      }
    }
  });
}

double root_mean_square(std::span<const float> values) {
  if (values.empty()) return 0;
  std::vector<double> sums((values.size() + kUnit - 1) / kUnit);
  sdk::parallel_for(0, static_cast<std::int64_t>(sums.size()), 1, [&](std::int64_t begin, std::int64_t end) {
    for (auto unit = static_cast<std::size_t>(begin); unit < static_cast<std::size_t>(end); ++unit) {
      const std::size_t last = std::min((unit + 1) * kUnit, values.size());
      for (std::size_t i = unit * kUnit; i < last; ++i) sums[unit] += square_of(values[i]);
    }
  });
  double sum = 0;
  for (const double unit : sums) sum += unit;
  return std::sqrt(sum / static_cast<double>(values.size()));
}

}  // namespace capstan::optimizers
