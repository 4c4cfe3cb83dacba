#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/zero/partition.hpp"

namespace capstan {

/// How numbers of two runs of elements become those of both.
enum class Join { kMax, kMin, kSum };

/// The groups of a flattened parameter, each of numel / groups consecutive elements, and its segments: what lies
/// between two cuts, at the ends of groups and at multiples of Partition::kBlock. Parts begin at such multiples, so
/// that the segments are the same however a parameter is cut.
struct GroupLayout {
  std::int64_t numel = 0, groups = 1;

  std::int64_t size() const { return groups > 0 ? numel / groups : 0; }
  /// Groups that have an element in the range: the first, and how many.
  std::int64_t first_group(const Range& range) const;
  std::int64_t groups_in(const Range& range) const;
  std::int64_t segments_in(const Range& range) const;
  /// The elements of the range that lie in a group.
  Range in_group(const Range& range, std::int64_t group) const;
};

/// Joins what the segments of a range gave: `width` numbers a segment, to those of the groups that the range meets.
/// `starts` what is no number of any element.
std::vector<double> join_segments(const GroupLayout& layout, const Range& range, const std::vector<Join>& joins,
                                  const std::vector<double>& segments);

/// The groups of a range that have elements outside it as well.
std::vector<std::int64_t> groups_that_cross(const GroupLayout& layout, const Range& range);

/// Joins `numbers` to `total`. NaN stays NaN, however it is joined.
void join(const std::vector<Join>& joins, const double* numbers, double* total);
/// What joins leave unchanged: of a maximum -infinity.
void start(const std::vector<Join>& joins, double* total);

}  // namespace capstan
