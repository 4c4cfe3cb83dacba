#pragma once

#include <cstddef>
#include <vector>

namespace capstan {

/// The runs of a point, each by its cost.
using Costs = std::vector<double>;

double median_of(Costs costs);
double mean_of(const Costs& costs);
/// How much runs of one point differ: the standard deviation of a run, relative to its point's mean, pooled over
/// points; 0 where none has several.
double noise_of(const std::vector<Costs>& points);
/// Half the width of the 95 % interval of the mean, by Student's t; infinite for fewer than two.
double half_interval(const Costs& costs);

/// Whether more runs would not change which of two points is the better: their 95 % intervals part, or both lie, with
/// their intervals, within `near` of each other.
bool decided(const Costs& a, const Costs& b, double near = 0.01);

/// Which point is to be run again, so that none leads by luck: first the best and those that noise may have put behind
/// it, six at most, up to three runs each; then of the two with the least means the one with fewer runs, the better one
/// of equals. None once these two are decided or both have `most` runs. Points without runs do not count.
struct Repeat {
  bool needed = false;
  std::size_t point = 0;
};
Repeat next_repeat(const std::vector<Costs>& points, std::size_t most);

/// The point with the least mean; points.size() when none has any runs.
std::size_t best_point(const std::vector<Costs>& points);

}  // namespace capstan
