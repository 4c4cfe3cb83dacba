#include "residual_process.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/ops/cholesky_solve.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/linalg_cholesky_ex.h>
#include <ATen/ops/linalg_solve_triangular.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace capstan::tuners {
namespace {

/// Relative distances over which errors are alike, and shares of the variance that are noise.
constexpr double kLengths[] = {0.4, 0.8, 1.6, 3.2}, kNoises[] = {0.003, 0.03, 0.2, 1};
/// Errors are never taken to be smaller than this on average: a few that agree by chance are no proof.
constexpr double kLeastVariance = 0.03 * 0.03;

double matern(const Position& a, const Position& b, double length) {
  double squares = 0;
  for (std::size_t i = 0; i < a.size(); ++i) squares += (a[i] - b[i]) * (a[i] - b[i]);
  const double distance = std::sqrt(5 * squares) / length;
  return (1 + distance + distance * distance / 3) * std::exp(-distance);
}

at::Tensor matrix(std::vector<double>& values, std::size_t rows, std::size_t columns) {
  return at::from_blob(values.data(), {static_cast<std::int64_t>(rows), static_cast<std::int64_t>(columns)},
                       at::kDouble);
}

std::vector<double> values_of(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.contiguous();
  return {flat.const_data_ptr<double>(), flat.const_data_ptr<double>() + flat.numel()};
}

}  // namespace

ResidualProcess::ResidualProcess(std::vector<Position> positions, const std::vector<double>& errors)
    : positions_(std::move(positions)), likelihood_(-std::numeric_limits<double>::infinity()) {
  if (positions_.empty()) return;
  for (const double length : kLengths) {
    for (const double noise : kNoises) fit(errors, length, noise);
  }
}

/// Takes length and noise over where the errors are more likely under them than under those so far.
bool ResidualProcess::fit(const std::vector<double>& errors, double length, double noise) {
  const std::size_t count = positions_.size();
  std::vector<double> kernel(count * count), given = errors;
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t j = 0; j < count; ++j) {
      kernel[i * count + j] = matern(positions_[i], positions_[j], length) + (i == j ? noise : 0);
    }
  }
  const auto [lower, failed] = at::linalg_cholesky_ex(matrix(kernel, count, count));
  if (failed.item<int>() != 0) return false;
  const std::vector<double> factor = values_of(lower);
  const std::vector<double> weights = values_of(at::cholesky_solve(matrix(given, count, 1), lower));
  double fit = 0, determinant = 0;
  for (std::size_t i = 0; i < count; ++i) {
    fit += errors[i] * weights[i];
    determinant += std::log(factor[i * count + i]);
  }
  const auto n = static_cast<double>(count);
  // One more error of the least size, so that few errors do not make a certainty.
  const double variance = std::max(kLeastVariance, (fit + kLeastVariance) / (n + 1));
  const double likelihood = -0.5 * fit / variance - determinant - 0.5 * n * std::log(variance);
  if (!(likelihood > likelihood_)) return false;
  likelihood_ = likelihood;
  length_ = length;
  variance_ = variance;
  factor_ = factor;
  weights_ = weights;
  return true;
}

std::vector<ResidualProcess::Belief> ResidualProcess::believe(const std::vector<Position>& positions) const {
  std::vector<Belief> beliefs(positions.size(), {0, std::sqrt(variance_)});
  const std::size_t count = weights_.size();
  if (count == 0 || positions.empty()) return beliefs;
  std::vector<double> cross(count * positions.size()), factor = factor_;
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t j = 0; j < positions.size(); ++j) {
      cross[i * positions.size() + j] = matern(positions_[i], positions[j], length_);
    }
  }
  const std::vector<double> solved = values_of(at::linalg_solve_triangular(
      matrix(factor, count, count), matrix(cross, count, positions.size()), /*upper=*/false));
  for (std::size_t j = 0; j < positions.size(); ++j) {
    double mean = 0, known = 0;
    for (std::size_t i = 0; i < count; ++i) {
      mean += cross[i * positions.size() + j] * weights_[i];
      known += solved[i * positions.size() + j] * solved[i * positions.size() + j];
    }
    beliefs[j] = {mean, std::sqrt(variance_ * std::max(1e-6, 1 - known))};
  }
  return beliefs;
}

}  // namespace capstan::tuners
