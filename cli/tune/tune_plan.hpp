#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cli/tune/tune_setup.hpp"
#include "core/engine/planned_run.hpp"
#include "core/tuning/cost_model.hpp"
#include "core/tuning/micro_batches.hpp"
#include "core/tuning/search.hpp"

namespace capstan::cli {

/// What a point needs, and what it does.
struct PointPlan {
  TuningPoint point;
  CostTerms terms{};
  std::int64_t bytes = 0;  // of a process; 0: not known
  std::string excluded;    // why it is not tried, a sentence; empty: it is
  std::string effect;      // equal for points that do the same
};

/// Looks at points without running any: the plan of their memory and of what they send; for a program of one's own,
/// what a profile of its model tells.
class PointPlanner {
 public:
  /// For our own models: builds the model's shapes. For a program: `estimate` and `activations` are what its profile
  /// told; without an estimate nothing is excluded.
  explicit PointPlanner(const TuneSetup& setup, std::int64_t limit, std::optional<ModelEstimate> estimate = {},
                        ActivationBytes activations = {});

  PointPlan plan(const TuningPoint& point);
  SpaceFacts facts() const { return facts_; }
  /// The rates of the cost model's terms before anything was measured.
  CostTerms guess() const { return guess_; }
  std::int64_t limit() const { return limit_; }
  std::string limit_text() const;  // "1.50 GB a process (--limit)"

 private:
  void plan_model(const TuningPoint& point, const Config& config, PointPlan& plan);
  void plan_estimate(const TuningPoint& point, PointPlan& plan) const;
  const ActivationBytes& activations(const Config& config, bool recomputes);
  void exclude_above_limit(const std::vector<std::pair<std::string, double>>& lines, PointPlan& plan) const;

  const TuneSetup& setup_;
  std::int64_t limit_;
  std::string limit_origin_;
  SpaceFacts facts_;
  CostTerms guess_{};
  std::optional<Model> model_;
  std::optional<ModelEstimate> estimate_;
  ActivationBytes program_activations_;
  std::map<bool, ActivationBytes> activations_;  // by whether they are recomputed
};

}  // namespace capstan::cli
