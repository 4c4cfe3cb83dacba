#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "cli/tune/tune_plan.hpp"
#include "cli/tune/tune_trials.hpp"
#include "core/tuning/metric.hpp"
#include "core/tuning/search.hpp"

namespace capstan::cli {

/// A row of summary.txt: a space, its trials and the best of them.
struct SummaryRow {
  std::string space;
  int experiments = 0;
  double best = 0;  // the metric; 0: none succeeded
  std::string best_name;
};

/// The table of DeepSpeed's summary.txt, and the line below it.
std::string summary_text(const std::vector<SummaryRow>& rows, double seconds);
/// One row a space in the order of the trials, and one "global".
std::vector<SummaryRow> summary_rows(const std::vector<PointPlan>& plans, const SearchResult& result,
                                     const TuningMetric& metric);

/// What a dry run says: points by their predicted cost, and what is excluded and why.
std::string space_text(const std::vector<PointPlan>& plans, const PointPlanner& planner, const TuningMetric& metric);
std::string excluded_text(const std::vector<PointPlan>& plans);

/// tuning.json, from which `capstan report` makes its page. `seconds`: of the whole search.
Json tuning_json(const std::vector<PointPlan>& plans, const SearchResult& result, const TuningMetric& metric,
                 const std::vector<std::pair<std::string, TrialOutcome>>& outcomes, double seconds);

}  // namespace capstan::cli
