#include "core/compression/group_layout.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace capstan {
namespace {

/// Multiples of `step` inside (from, to).
std::int64_t multiples_inside(std::int64_t from, std::int64_t to, std::int64_t step) {
  return (to - 1) / step - from / step;
}

std::int64_t end_of(const Range& range) { return range.offset + range.numel; }

}  // namespace

std::int64_t GroupLayout::first_group(const Range& range) const { return range.offset / size(); }

std::int64_t GroupLayout::groups_in(const Range& range) const {
  return range.numel == 0 ? 0 : (end_of(range) - 1) / size() - first_group(range) + 1;
}

std::int64_t GroupLayout::segments_in(const Range& range) const {
  if (range.numel == 0) return 0;
  const std::int64_t block = Partition::kBlock, both = block / std::gcd(size(), block);  // in groups
  const std::int64_t end = end_of(range);
  const std::int64_t twice = both > end / size() ? 0 : multiples_inside(range.offset, end, both * size());
  return 1 + multiples_inside(range.offset, end, size()) + multiples_inside(range.offset, end, block) - twice;
}

Range GroupLayout::in_group(const Range& range, std::int64_t group) const {
  const std::int64_t begin = std::max(range.offset, group * size());
  return {begin, std::max<std::int64_t>(std::min(end_of(range), (group + 1) * size()) - begin, 0)};
}

std::vector<std::int64_t> groups_that_cross(const GroupLayout& layout, const Range& range) {
  std::vector<std::int64_t> crossing;
  if (range.numel == 0) return crossing;
  for (const std::int64_t group : {layout.first_group(range), (end_of(range) - 1) / layout.size()}) {
    const bool inside = layout.in_group(range, group).numel == layout.size();
    if (!inside && (crossing.empty() || crossing.back() != group)) crossing.push_back(group);
  }
  return crossing;
}

void start(const std::vector<Join>& joins, double* total) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const Join how : joins) *total++ = how == Join::kSum ? 0 : how == Join::kMax ? -kInfinity : kInfinity;
}

void join(const std::vector<Join>& joins, const double* numbers, double* total) {
  for (std::size_t k = 0; k < joins.size(); ++k) {
    const double number = numbers[k];
    if (joins[k] == Join::kSum) {
      total[k] += number;
    } else if (std::isnan(number) || (joins[k] == Join::kMax ? number > total[k] : number < total[k])) {
      total[k] = number;
    }
  }
}

std::vector<double> join_segments(const GroupLayout& layout, const Range& range, const std::vector<Join>& joins,
                                  const std::vector<double>& segments) {
  const std::int64_t first = layout.first_group(range), count = layout.groups_in(range);
  // Small groups mostly lie in one segment each, and then nothing is to be joined.
  if (segments.size() == static_cast<std::size_t>(count) * joins.size()) return segments;
  std::vector<double> totals(static_cast<std::size_t>(count) * joins.size());
  const double* at = segments.data();
  for (std::int64_t group = 0; group < count; ++group) {
    double* total = totals.data() + static_cast<std::size_t>(group) * joins.size();
    start(joins, total);
    for (std::int64_t left = layout.segments_in(layout.in_group(range, first + group)); left > 0; --left) {
      join(joins, at, total);
      at += joins.size();
    }
  }
  return totals;
}

}  // namespace capstan
