#pragma once

#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "core/tuning/cost_model.hpp"
#include "core/tuning/decision.hpp"
#include "core/tuning/tuner.hpp"

namespace capstan {

/// What a search may spend.
struct SearchLimits {
  std::size_t trials = std::numeric_limits<std::size_t>::max();            // points, of all together
  std::size_t trials_per_stage = std::numeric_limits<std::size_t>::max();  // tuner_num_trials
  std::size_t early_stopping = 0;                                          // trials since the best; 0: never
  std::size_t most_runs = 6;                                               // of each of the two leaders
};

/// A point as the search sees it.
struct SearchPoint {
  int stage = 0;
  CostTerms terms{};
  double samples = 1;  // of a step over all devices; what the cost is divided by: 1 for the latency
};

/// One run of a point: its seconds a step, or nothing where it failed.
using RunPoint = std::function<std::optional<double>(std::size_t point)>;

struct TriedPoint {
  std::size_t point = 0;
  double predicted = 0;  // the cost that the model expected before the trial
  Costs costs;           // of its runs; empty: it failed
};

struct SearchResult {
  std::vector<TriedPoint> tried;    // in their order
  std::optional<std::size_t> best;  // a place in `tried`; none: every trial failed
  std::string stopped;              // why it ended, a sentence without a full stop
  CostTerms rates{};                // of the model, at the end
};

/// Searches the points for the least cost: the tuner chooses, `run` measures, the model learns; then the two leaders
/// run in turns until it is decided which is the better one. `stop`, asked between trials, ends it early. `before`:
/// points of which the tuner knows already, in their order. Costs are seconds a step divided by SearchPoint::samples.
SearchResult search(Tuner& tuner, const std::vector<SearchPoint>& points, const CostTerms& guess,
                    const SearchLimits& limits, const RunPoint& run, const std::function<bool()>& stop = {},
                    const std::vector<std::size_t>& before = {},
                    const std::function<void(const SearchResult&)>& after_trial = {});

}  // namespace capstan
