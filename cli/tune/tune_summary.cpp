#include "cli/tune/tune_summary.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <numeric>

#include "core/text/numbers.hpp"
#include "core/text/table.hpp"

namespace capstan::cli {
namespace {

constexpr std::size_t kMinPadding = 2;  // of a heading, as DeepSpeed's tables have it
constexpr std::size_t kMostShown = 40;

std::string general(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", value);
  return text;
}

std::string padded(const std::string& text, std::size_t width, bool right) {
  const std::string spaces(width > text.size() ? width - text.size() : 0, ' ');
  return right ? spaces + text : text + spaces;
}

/// Numbers with their decimal points one below the other.
std::vector<std::string> aligned(const std::vector<SummaryRow>& rows) {
  std::vector<std::string> texts;
  std::size_t most = 0;
  const auto decimals = [](const std::string& text) {
    const auto dot = text.find('.');
    return dot == std::string::npos ? std::size_t{0} : text.size() - dot;
  };
  for (const SummaryRow& row : rows) {
    texts.push_back(general(row.best));
    most = std::max(most, decimals(texts.back()));
  }
  for (std::string& text : texts) text += std::string(most - decimals(text), ' ');
  return texts;
}

/// A column of such a table: its heading, its cells, and whether they stand to the right.
std::vector<std::string> column(const std::string& heading, const std::vector<std::string>& cells, bool right) {
  std::size_t width = heading.size() + kMinPadding;
  for (const std::string& cell : cells) width = std::max(width, cell.size());
  std::vector<std::string> lines = {" " + padded(heading, width, right) + " ",
                                    right ? std::string(width + 1, '-') + ":" : ":" + std::string(width + 1, '-')};
  for (const std::string& cell : cells) lines.push_back(" " + padded(cell, width, right) + " ");
  return lines;
}

std::string duration_with_fraction(double seconds) {
  const auto whole = static_cast<std::int64_t>(seconds);
  const auto micro = static_cast<std::int64_t>((seconds - static_cast<double>(whole)) * 1e6);
  char text[64];
  std::snprintf(text, sizeof text, "%lld:%02lld:%02lld.%06lld", static_cast<long long>(whole / 3600),
                static_cast<long long>(whole / 60 % 60), static_cast<long long>(whole % 60),
                static_cast<long long>(micro));
  return text;
}

}  // namespace

std::string summary_text(const std::vector<SummaryRow>& rows, double seconds) {
  std::vector<std::string> spaces, counts, names;
  int all = 0;
  for (const SummaryRow& row : rows) {
    spaces.push_back(row.space);
    counts.push_back(std::to_string(row.experiments));
    names.push_back(row.best_name);
    if (row.space == "global") all = row.experiments;
  }
  const auto columns = {column("tuning_space", spaces, false), column("num_experiments", counts, true),
                        column("best_metric_val", aligned(rows), true), column("best_exp_name", names, false)};
  std::string text;
  for (std::size_t line = 0; line < rows.size() + 2; ++line) {
    text += "|";
    for (const auto& lines : columns) text += lines[line] + "|";
    text += "\n";
  }
  return text + "\nTuning completed in " + duration_with_fraction(seconds) +
         ". Total number of experiments: " + std::to_string(all) + ".\n";
}

std::vector<SummaryRow> summary_rows(const std::vector<PointPlan>& plans, const SearchResult& result,
                                     const TuningMetric& metric) {
  std::vector<SummaryRow> rows;
  SummaryRow global{"global", 0, 0, ""};
  const bool least = metric.is_least();
  for (const TriedPoint& tried : result.tried) {
    const TuningPoint& point = plans[tried.point].point;
    auto row = std::find_if(rows.begin(), rows.end(), [&](const SummaryRow& one) { return one.space == point.space; });
    if (row == rows.end()) row = rows.insert(rows.end(), {point.space, 0, 0, point.name});
    ++row->experiments;
    ++global.experiments;
    if (tried.costs.empty()) continue;
    const double value = metric.value(point, mean_of(tried.costs) * metric.samples(point));
    for (SummaryRow* best : {&*row, &global}) {
      if (best->best == 0 || (least ? value < best->best : value > best->best)) {
        best->best = value;
        best->best_name = point.name;
      }
    }
  }
  // The leaders were told apart by more runs than their first.
  if (result.best) {
    const TriedPoint& best = result.tried[*result.best];
    const TuningPoint& point = plans[best.point].point;
    global.best_name = point.name;
    global.best = metric.value(point, mean_of(best.costs) * metric.samples(point));
  }
  rows.push_back(global);
  return rows;
}

std::string excluded_text(const std::vector<PointPlan>& plans) {
  std::string text;
  std::size_t shown = 0, all = 0;
  for (const PointPlan& plan : plans) {
    if (plan.excluded.empty()) continue;
    if (++all <= kMostShown && ++shown > 0) text += "  " + plan.point.name + ": " + plan.excluded + "\n";
  }
  if (all == 0) return "";
  if (all > shown) text += "  ... and " + std::to_string(all - shown) + " more.\n";
  return "excluded without a trial: " + std::to_string(all) + "\n" + text;
}

std::string space_text(const std::vector<PointPlan>& plans, const PointPlanner& planner, const TuningMetric& metric) {
  std::vector<std::pair<double, const PointPlan*>> ranked;
  CostModel model(planner.guess());
  for (const PointPlan& plan : plans) {
    if (!plan.excluded.empty()) continue;
    const double seconds = model.predict(plan.terms);
    ranked.emplace_back(seconds / metric.samples(plan.point), &plan);
  }
  std::stable_sort(ranked.begin(), ranked.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::vector<std::string>> rows = {{"  point", "memory of a process", "predicted cost, of the least"}};
  for (std::size_t i = 0; i < ranked.size() && i < kMostShown; ++i) {
    const PointPlan& plan = *ranked[i].second;
    rows.push_back({"  " + plan.point.name,
                    plan.bytes > 0 ? bytes_text(static_cast<std::uint64_t>(plan.bytes)) : "not known",
                    fixed(ranked[i].first / ranked.front().first, 2)});
  }
  std::string text = std::to_string(ranked.size()) + (ranked.size() == 1 ? " point to try" : " points to try") +
                     ", with at most " + planner.limit_text() + "\n" + table_text(rows);
  if (ranked.size() > kMostShown) text += "  ... and " + std::to_string(ranked.size() - kMostShown) + " more.\n";
  return text + excluded_text(plans);
}

Json tuning_json(const std::vector<PointPlan>& plans, const SearchResult& result, const TuningMetric& metric,
                 const std::vector<std::pair<std::string, TrialOutcome>>& outcomes, double seconds) {
  std::map<std::string, const TrialOutcome*> by_name;
  double in_trials = 0;
  for (const auto& [name, outcome] : outcomes) {
    by_name[name] = &outcome;
    in_trials += outcome.seconds;
  }
  Json json = Json::object();
  json["metric"] = metric.name();
  json["stopped"] = result.stopped;
  json["seconds"] = seconds;
  json["seconds_in_trials"] = in_trials;
  json["points"] = static_cast<std::int64_t>(plans.size());
  Json& list = json["tried"] = Json::array();
  for (const TriedPoint& tried : result.tried) {
    const TuningPoint& point = plans[tried.point].point;
    const double samples = metric.samples(point);
    Json entry = Json::object();
    entry["name"] = point.name;
    entry["train_batch_size"] = point.train_batch;
    entry["predicted_seconds"] = tried.predicted * samples;
    Json& runs = entry["seconds"] = Json::array();
    for (const double cost : tried.costs) runs.push_back(cost * samples);
    if (metric.counts_operations() && !tried.costs.empty()) {
      entry["FLOPS_per_gpu"] = metric.value(point, mean_of(tried.costs) * samples);
    }
    entry["planned_memory"] = plans[tried.point].bytes;
    if (const auto outcome = by_name.find(point.name); outcome != by_name.end()) {
      entry["outcome"] = outcome->second->outcome;
      if (!outcome->second->reason.empty()) entry["reason"] = outcome->second->reason;
      entry["peak_memory"] = outcome->second->peak_bytes;
    }
    list.push_back(std::move(entry));
  }
  if (result.best) json["best"] = plans[result.tried[*result.best].point].point.name;
  return json;
}

}  // namespace capstan::cli
