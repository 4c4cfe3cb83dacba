#include "core/tuning/decision.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

namespace capstan {
namespace {

/// The 0.975 quantile of Student's distribution with 1 to 10 degrees of freedom; beyond, the normal one is near enough.
constexpr std::array<double, 10> kStudent = {12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228};

/// How many points may contend for the lead, with how many runs, and how many standard deviations of a run behind.
constexpr std::size_t kContenders = 6, kRunsOfContender = 3;
constexpr double kBehind = 1.5;

/// The points with runs, by their means.
std::vector<std::size_t> ranking(const std::vector<Costs>& points) {
  std::vector<std::size_t> ranked;
  std::vector<double> means(points.size());
  for (std::size_t i = 0; i < points.size(); ++i) {
    if (points[i].empty()) continue;
    ranked.push_back(i);
    means[i] = mean_of(points[i]);
  }
  std::stable_sort(ranked.begin(), ranked.end(), [&](std::size_t a, std::size_t b) { return means[a] < means[b]; });
  return ranked;
}

}  // namespace

double mean_of(const Costs& costs) {
  return std::accumulate(costs.begin(), costs.end(), 0.0) / static_cast<double>(costs.size());
}

double noise_of(const std::vector<Costs>& points) {
  double squares = 0, freedom = 0;
  for (const Costs& costs : points) {
    if (costs.size() < 2) continue;
    const double mean = mean_of(costs);
    for (const double cost : costs) squares += (cost / mean - 1) * (cost / mean - 1);
    freedom += static_cast<double>(costs.size() - 1);
  }
  return freedom > 0 ? std::sqrt(squares / freedom) : 0;
}

double median_of(Costs costs) {
  if (costs.empty()) return std::numeric_limits<double>::quiet_NaN();
  std::sort(costs.begin(), costs.end());
  const std::size_t half = costs.size() / 2;
  return costs.size() % 2 == 1 ? costs[half] : (costs[half - 1] + costs[half]) / 2;
}

double half_interval(const Costs& costs) {
  if (costs.size() < 2) return std::numeric_limits<double>::infinity();
  const double mean = mean_of(costs);
  double squares = 0;
  for (const double cost : costs) squares += (cost - mean) * (cost - mean);
  const std::size_t freedom = costs.size() - 1;
  const double student = freedom <= kStudent.size() ? kStudent[freedom - 1] : 1.96;
  return student * std::sqrt(squares / static_cast<double>(freedom) / static_cast<double>(costs.size()));
}

bool decided(const Costs& a, const Costs& b, double near) {
  const double mean_a = mean_of(a), mean_b = mean_of(b), wide_a = half_interval(a), wide_b = half_interval(b);
  const double apart = std::abs(mean_a - mean_b);
  if (apart > wide_a + wide_b) return true;
  return apart + wide_a + wide_b < near * std::min(mean_a, mean_b);
}

Repeat next_repeat(const std::vector<Costs>& points, std::size_t most) {
  const std::vector<std::size_t> ranked = ranking(points);
  if (ranked.size() < 2) return {};
  const std::size_t first = ranked[0], second = ranked[1];
  const std::size_t runs_first = points[first].size(), runs_second = points[second].size();
  if (runs_first < std::min<std::size_t>(2, most)) return {true, first};
  const double reach = mean_of(points[first]) * (1 + kBehind * noise_of(points));
  const auto behind = [&](std::size_t point) { return mean_of(points[point]) > reach; };
  const auto end = std::find_if(
      ranked.begin(), ranked.begin() + static_cast<std::ptrdiff_t>(std::min(ranked.size(), kContenders)), behind);
  const auto least = std::min_element(
      ranked.begin(), end, [&](std::size_t a, std::size_t b) { return points[a].size() < points[b].size(); });
  if (points[*least].size() < std::min(kRunsOfContender, most)) return {true, *least};
  if (std::min(runs_first, runs_second) >= most) return {};
  if (runs_first >= 2 && runs_second >= 2 && decided(points[first], points[second])) return {};
  return {true, runs_second < runs_first ? second : first};
}

std::size_t best_point(const std::vector<Costs>& points) {
  const std::vector<std::size_t> ranked = ranking(points);
  return ranked.empty() ? points.size() : ranked.front();
}

}  // namespace capstan
