#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "capstan/sdk/tuner.hpp"
#include "residual_process.hpp"

namespace capstan::tuners {
namespace {

/// Points that are tried for the sake of what they tell, after the one that is predicted to be best.
constexpr std::size_t kMostScouts = 4;
/// Of the budget, which scouts may take.
constexpr std::size_t kScoutShare = 4;
/// How much worse than the worst a point counts that failed.
constexpr double kFailure = 0.5;

struct Told {
  std::size_t point;
  double cost;  // 0: it failed
};

class ModelBased {
 public:
  ModelBased(const sdk::Host&, const sdk::Params&) {}

  void start(const sdk::TuningSpace& space) {
    positions_.assign(space.points(), Position(space.features()));
    for (std::size_t feature = 0; feature < space.features(); ++feature) place(space, feature);
    scouts_ = std::min(kMostScouts, space.budget() / kScoutShare);
    chosen_.assign(space.points(), false);
  }

  std::vector<std::size_t> ask(std::span<const double> predictions, std::size_t most) {
    std::vector<std::size_t> asked;
    while (asked.size() < most && count_ < positions_.size()) {
      const std::size_t point = count_ == 0                   ? least(predictions)
                                : count_ <= scouts_ || !ran() ? scout(predictions)
                                                              : most_promising(predictions);
      chosen_[point] = true;
      ++count_;
      order_.push_back(point);
      asked.push_back(point);
    }
    return asked;
  }

  void tell(std::size_t point, std::optional<double> cost) { told_.push_back({point, cost.value_or(0)}); }

  void save(const sdk::Sink& sink) const {
    std::string points, costs;
    for (const std::size_t point : order_) points += (points.empty() ? "" : ", ") + std::to_string(point);
    for (const Told& one : told_) {
      char text[64];
      std::snprintf(text, sizeof text, "%s[%zu, %.17g]", costs.empty() ? "" : ", ", one.point, one.cost);
      costs += text;
    }
    sink.write("{\"asked\": [" + points + "], \"told\": [" + costs + "]}");
  }

  void load(const sdk::Document& saved) {
    for (const double point : saved.numbers("asked")) {
      order_.push_back(static_cast<std::size_t>(point));
      chosen_.at(order_.back()) = true;
    }
    count_ = order_.size();
    for (std::size_t i = 0; i < saved.size("told"); ++i) {
      const std::vector<double> one = saved.numbers("/told/" + std::to_string(i));
      told_.push_back({static_cast<std::size_t>(one.at(0)), one.at(1)});
    }
  }

 private:
  /// Values by their rank among those that there are: bucket sizes grow by factors, stages by one.
  void place(const sdk::TuningSpace& space, std::size_t feature) {
    std::map<double, double> ranks;
    for (std::size_t point = 0; point < space.points(); ++point) ranks[space.values(point)[feature]] = 0;
    double rank = 0;
    for (auto& [value, place] : ranks) place = rank++;
    const double last = std::max(1.0, rank - 1);
    for (std::size_t point = 0; point < space.points(); ++point) {
      positions_[point][feature] = ranks[space.values(point)[feature]] / last;
    }
  }

  static double logarithm(double prediction) { return prediction > 0 ? std::log(prediction) : 0; }

  std::size_t least(std::span<const double> predictions) const {
    std::size_t best = first_free();
    for (std::size_t point = 0; point < positions_.size(); ++point) {
      if (!chosen_[point] && predictions[point] < predictions[best]) best = point;
    }
    return best;
  }

  std::size_t first_free() const {
    return static_cast<std::size_t>(std::find(chosen_.begin(), chosen_.end(), false) - chosen_.begin());
  }

  bool ran() const {
    return std::any_of(told_.begin(), told_.end(), [](const Told& one) { return one.cost > 0; });
  }

  /// The point that lies farthest from all that were chosen: of the better half by prediction, or of all where nothing
  /// has run so far, because what is predicted to be fast may not fit.
  std::size_t scout(std::span<const double> predictions) const {
    std::vector<double> sorted(predictions.begin(), predictions.end());
    std::nth_element(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2), sorted.end());
    const double half = told_.empty() || ran() ? sorted[sorted.size() / 2] : std::numeric_limits<double>::infinity();
    std::size_t farthest = first_free();
    double distance = -1;
    for (std::size_t point = 0; point < positions_.size(); ++point) {
      if (chosen_[point] || predictions[point] > half) continue;
      double nearest = std::numeric_limits<double>::infinity();
      for (const std::size_t other : order_) nearest = std::min(nearest, squares(positions_[point], positions_[other]));
      if (nearest > distance) {
        distance = nearest;
        farthest = point;
      }
    }
    return farthest;
  }

  static double squares(const Position& a, const Position& b) {
    double sum = 0;
    for (std::size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
    return sum;
  }

  /// The point with the greatest expected improvement on the best so far, all in logarithms of costs.
  std::size_t most_promising(std::span<const double> predictions) const {
    double worst = -std::numeric_limits<double>::infinity();
    for (const Told& one : told_) {
      if (one.cost > 0) worst = std::max(worst, std::log(one.cost));
    }
    std::vector<Position> known;
    std::vector<double> errors;
    for (const Told& one : told_) {
      known.push_back(positions_[one.point]);
      const double seen = one.cost > 0 ? std::log(one.cost) : worst + kFailure;
      errors.push_back(seen - logarithm(predictions[one.point]));
    }
    const std::vector<ResidualProcess::Belief> beliefs = ResidualProcess(known, errors).believe(positions_);
    // What is believed of the points that ran: the least time that was seen may have been luck.
    double best = std::numeric_limits<double>::infinity();
    for (const Told& one : told_) {
      if (one.cost > 0) best = std::min(best, logarithm(predictions[one.point]) + beliefs[one.point].mean);
    }
    std::size_t chosen = first_free();
    double greatest = -std::numeric_limits<double>::infinity();
    for (std::size_t point = 0; point < positions_.size(); ++point) {
      if (chosen_[point]) continue;
      const double mean = logarithm(predictions[point]) + beliefs[point].mean;
      const double value = improvement(best, mean, beliefs[point].deviation);
      if (value > greatest) {
        greatest = value;
        chosen = point;
      }
    }
    return chosen;
  }

  /// The logarithm of E[max(0, best - X)] of a normal X: Jones, Schonlau and Welch 1998, equation 15; far below the
  /// best by its leading term, where the formula itself would be 0 for all.
  static double improvement(double best, double mean, double deviation) {
    constexpr double kFar = -5;
    const double z = (best - mean) / deviation;
    if (z < kFar) return std::log(deviation) - 0.5 * z * z - 2 * std::log(-z) - 0.5 * std::log(2 * M_PI);
    const double density = std::exp(-0.5 * z * z) / std::sqrt(2 * M_PI);
    return std::log((best - mean) * 0.5 * std::erfc(-z / std::sqrt(2.0)) + deviation * density);
  }

  std::vector<Position> positions_;
  std::vector<bool> chosen_;
  std::vector<std::size_t> order_;  // the points that were asked for
  std::vector<Told> told_;
  std::size_t count_ = 0, scouts_ = 0;
};

}  // namespace
}  // namespace capstan::tuners

CAPSTAN_PLUGIN(&capstan::sdk::tuner<capstan::tuners::ModelBased, "model_based">)
