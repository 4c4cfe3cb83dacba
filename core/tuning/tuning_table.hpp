#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/text/json.hpp"
#include "core/tuning/search.hpp"
#include "core/tuning/tuner.hpp"

namespace capstan {

/// Every point of a space with the times of its runs: what `capstan tune --record` writes, and what --replay searches
/// in place of trials.
struct TuningTable {
  std::string about;  // where and how it was recorded
  TuningFeatures space;
  std::vector<SearchPoint> points;
  std::vector<std::vector<double>> runs;  // seconds a step of each run, by point; none: it fails
  std::vector<std::int64_t> peaks;        // bytes of a process, by point; 0: not known
  CostTerms guess{};

  /// The cost of a point: the median of its runs, divided by its samples; infinite for one that fails.
  double cost(std::size_t point) const;
  double least_cost() const;
  /// noise_of() its runs.
  double spread() const { return noise_of(runs); }

  Json json() const;
  /// Throws ConfigError naming what is missing or does not fit.
  static TuningTable parse(const Json& json, const std::string& name);
};

/// What a search in a table found.
struct Replay {
  std::size_t trials = 0;  // points
  double excess = 0;       // of the cost of the best one, over the least: 0.03 is 3 % more; infinite: none was found
};

/// A search with at most `budget` points; runs of a point are drawn from its own by `seed`.
Replay replay(const TuningTable& table, Tuner& tuner, std::size_t budget, std::uint64_t seed);

}  // namespace capstan
