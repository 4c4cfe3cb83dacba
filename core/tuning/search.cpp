#include "core/tuning/search.hpp"

#include <algorithm>
#include <cmath>
#include <map>

namespace capstan {
namespace {

class Search {
 public:
  Search(Tuner& tuner, const std::vector<SearchPoint>& points, const CostTerms& guess, const SearchLimits& limits,
         const RunPoint& run, const std::function<bool()>& stop,
         const std::function<void(const SearchResult&)>& after_trial)
      : tuner_(tuner),
        points_(points),
        limits_(limits),
        run_(run),
        stop_(stop),
        after_trial_(after_trial),
        model_(guess) {}

  SearchResult result(const std::vector<std::size_t>& before) {
    for (const std::size_t point : before) try_point(point, /*new_to_tuner=*/false);
    explore();
    settle_leaders();
    result_.rates = model_.rates();
    note_best();
    return std::move(result_);
  }

 private:
  double predicted(std::size_t point) const { return model_.predict(points_[point].terms) / points_[point].samples; }
  bool stopped() const { return stop_ && stop_(); }

  void explore() {
    while (true) {
      if (stopped()) return end("interrupted");
      if (result_.tried.size() >= limits_.trials) return end("the number of trials is reached");
      if (result_.tried.size() == points_.size()) return end("every point was tried");
      if (limits_.early_stopping > 0 && since_best_ >= limits_.early_stopping) {
        return end("no better point in the last " +
                   (since_best_ == 1 ? "trial" : std::to_string(since_best_) + " trials"));
      }
      const std::vector<std::size_t> chosen = tuner_.ask(predictions(), 1);
      if (chosen.empty()) return end("the tuner wants no more points");
      if (full(points_[chosen.front()].stage)) {
        // It has been chosen, and is not to be chosen again.
        tuner_.tell(chosen.front(), std::nullopt);
        if (++passed_over_ + result_.tried.size() >= points_.size())
          return end("tuner_num_trials is reached at every stage");
        continue;
      }
      try_point(chosen.front());
    }
  }

  bool full(int stage) { return per_stage_[stage] >= limits_.trials_per_stage; }

  void try_point(std::size_t point, bool new_to_tuner = true) {
    TriedPoint tried{point, predicted(point), {}};
    const std::optional<double> seconds = run_(point);
    if (!seconds && stopped()) return;  // the interruption is no result
    ++per_stage_[points_[point].stage];
    if (seconds) {
      model_.add(points_[point].terms, *seconds);
      tried.costs.push_back(*seconds / points_[point].samples);
    }
    if (new_to_tuner) tuner_.tell(point, seconds ? std::optional(tried.costs.front()) : std::nullopt);
    ++since_best_;
    if (seconds && (!best_cost_ || tried.costs.front() < *best_cost_)) {
      best_cost_ = tried.costs.front();
      since_best_ = 0;
    }
    result_.tried.push_back(std::move(tried));
    note_best();
    if (after_trial_) after_trial_(result_);
  }

  /// Noise is the enemy of short trials: what leads by chance would win.
  void settle_leaders() {
    while (!stopped()) {
      std::vector<Costs> costs;
      for (const TriedPoint& tried : result_.tried) costs.push_back(tried.costs);
      const Repeat repeat = next_repeat(costs, limits_.most_runs);
      if (!repeat.needed) return;
      TriedPoint& tried = result_.tried[repeat.point];
      const std::optional<double> seconds = run_(tried.point);
      if (!seconds) {
        if (stopped()) return;
        tried.costs.clear();  // it does not run reliably
        continue;
      }
      tried.costs.push_back(*seconds / points_[tried.point].samples);
      note_best();
      if (after_trial_) after_trial_(result_);
    }
  }

  void note_best() {
    std::vector<Costs> costs;
    for (const TriedPoint& tried : result_.tried) costs.push_back(tried.costs);
    const std::size_t best = best_point(costs);
    result_.best = best < costs.size() ? std::optional(best) : std::nullopt;
  }

  std::vector<double> predictions() const {
    std::vector<double> all(points_.size());
    for (std::size_t i = 0; i < points_.size(); ++i) all[i] = predicted(i);
    return all;
  }

  void end(const std::string& why) { result_.stopped = why; }

  Tuner& tuner_;
  const std::vector<SearchPoint>& points_;
  const SearchLimits& limits_;
  const RunPoint& run_;
  const std::function<bool()>& stop_;
  const std::function<void(const SearchResult&)>& after_trial_;
  CostModel model_;
  SearchResult result_;
  std::map<int, std::size_t> per_stage_;
  std::optional<double> best_cost_;
  std::size_t since_best_ = 0, passed_over_ = 0;
};

}  // namespace

SearchResult search(Tuner& tuner, const std::vector<SearchPoint>& points, const CostTerms& guess,
                    const SearchLimits& limits, const RunPoint& run, const std::function<bool()>& stop,
                    const std::vector<std::size_t>& before,
                    const std::function<void(const SearchResult&)>& after_trial) {
  return Search(tuner, points, guess, limits, run, stop, after_trial).result(before);
}

}  // namespace capstan
