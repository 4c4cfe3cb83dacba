#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tests/plugins/meeting.hpp"
#include "tests/plugins/optimizers/onebit_reference.hpp"
#include "tests/plugins/optimizers/optimizer_under_test.hpp"

namespace capstan::testing {

/// What is trained: parameters one after the other, and each rank's gradient at each update.
struct Problem {
  std::uint32_t ranks = 1;
  std::vector<std::size_t> lengths;
  std::function<double(std::size_t i)> initial;
  std::function<double(std::uint32_t rank, int t, std::size_t i)> gradient;  // t from 1
  std::function<double(int t)> lr = [](int) { return 0.01; };
  double clip = 0;  // 0: none

  std::size_t count() const;
  Vector start() const;
  /// All ranks' gradients as an engine hands them over: each with the mean, or each with its own; and the factor for
  /// all of them, which one norm gives on all ranks.
  std::vector<Vector> gradients(int t, bool local) const;
  double scale(int t, bool local) const;
};

/// The problem of the golden tables: 16 elements, 2 ranks.
Problem golden_problem(std::vector<std::size_t> lengths);
/// Gradients that look random but pull parameters to values of their own, so that training gets somewhere.
Problem noisy_problem(std::uint32_t ranks, std::vector<std::size_t> lengths, std::uint64_t seed);

/// One rank of a problem with a plugin's optimizer.
class RankOfProblem {
 public:
  RankOfProblem(const Problem& problem, std::string_view plugin, std::string_view type, const Json& params, Seat seat,
                at::Device device = at::kCPU);

  void update(int t);
  Vector params() const;
  std::vector<float> bits() const;
  OptimizerUnderTest optimizer;

 private:
  const Problem& problem_;
  std::uint32_t rank_;
};

/// Runs updates 1 to `updates` on all ranks; seen(rank, t) after each, on the rank's own thread.
void run_ranks(const Problem& problem, std::string_view plugin, std::string_view type, const std::string& params,
               int updates, const std::function<void(RankOfProblem&, std::uint32_t rank, int t)>& seen,
               at::Device device = at::kCPU);

}  // namespace capstan::testing
