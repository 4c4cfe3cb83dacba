#pragma once

#include <cstddef>
#include <vector>

namespace capstan::tuners {

/// Where a point lies: each feature between 0 and 1.
using Position = std::vector<double>;

/// A Gaussian process with mean 0, for the errors of a prediction: Rasmussen and Williams 2006, algorithm 2.1, with the
/// Matern kernel of smoothness 5/2. Scale, length and noise are those of a small grid under which the errors are the
/// most likely.
class ResidualProcess {
 public:
  struct Belief {
    double mean = 0, deviation = 0;
  };

  /// `errors`: one a position. Without any, every belief is the prior's.
  ResidualProcess(std::vector<Position> positions, const std::vector<double>& errors);

  /// What is to be expected at each of `positions`.
  std::vector<Belief> believe(const std::vector<Position>& positions) const;

 private:
  bool fit(const std::vector<double>& errors, double length, double noise);

  std::vector<Position> positions_;
  double length_ = 1, variance_ = 0.01;
  std::vector<double> factor_;   // Cholesky factor of the kernel's matrix, [n][n], lower
  std::vector<double> weights_;  // its inverse times the errors
  double likelihood_ = 0;        // the logarithm
};

}  // namespace capstan::tuners
