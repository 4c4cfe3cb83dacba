#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace capstan::testing {

using Vector = std::vector<double>;

/// The error-compensated exchange of all ranks at once, written down plainly in double precision.
class ReferenceExchange {
 public:
  ReferenceExchange(std::size_t ranks, std::size_t count)
      : ranks_(ranks), count_(count), worker_error(ranks, Vector(count)), server_error(count) {
    std::size_t padded = count;
    while (padded % ranks != 0 || padded / ranks % 8 != 0 || padded / ranks % ranks != 0) ++padded;
    share_ = padded / ranks;
  }

  std::size_t share() const { return share_; }

  /// The average that every rank gets; `values[k]` are those of rank k.
  Vector run(const std::vector<Vector>& values) {
    Vector sum(count_), average(count_);
    worker_scales.clear();
    server_scales.clear();
    for (std::size_t rank = 0; rank < ranks_; ++rank) {
      Vector& error = worker_error[rank];
      for (std::size_t i = 0; i < count_; ++i) error[i] += values[rank][i];
      const Vector signs = compress(error, 0, count_, worker_scales);
      for (std::size_t i = 0; i < count_; ++i) sum[i] += signs[i] / static_cast<double>(ranks_);
    }
    for (std::size_t i = 0; i < count_; ++i) server_error[i] += sum[i];
    for (std::size_t rank = 0; rank < ranks_; ++rank) {
      const std::size_t begin = std::min(rank * share_, count_), end = std::min(begin + share_, count_);
      const Vector signs = compress(server_error, begin, end, server_scales);
      for (std::size_t i = begin; i < end; ++i) average[i] = signs[i];
    }
    return average;
  }

  void zero_errors() {
    for (Vector& error : worker_error) error.assign(count_, 0);
    server_error.assign(count_, 0);
  }

 private:
  std::size_t ranks_, count_, share_ = 0;

  /// scale * sign of elements [begin, end), which keep what that misses.
  Vector compress(Vector& values, std::size_t begin, std::size_t end, Vector& scales) {
    double squares = 0;
    for (std::size_t i = begin; i < end; ++i) squares += values[i] * values[i];
    const double scale = begin == end ? 0 : std::sqrt(squares / static_cast<double>(end - begin));
    scales.push_back(scale);
    Vector out(values.size());
    for (std::size_t i = begin; i < end; ++i) {
      if (scale > 0 && values[i] != 0) closest = std::min(closest, std::abs(values[i]) / scale);
      out[i] = values[i] >= 0 ? scale : -scale;
      values[i] -= out[i];
    }
    return out;
  }

 public:
  std::vector<Vector> worker_error;
  Vector server_error;
  Vector worker_scales, server_scales;  // scales of the last run
  /// How near to zero, in scales, a value came whose sign was taken: where it is as near as rounding reaches, a float
  /// may take the other one, and a comparison means nothing.
  double closest = std::numeric_limits<double>::infinity();
};

}  // namespace capstan::testing
