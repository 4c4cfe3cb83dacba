#include "core/compression/group_layout.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <set>

namespace capstan {
namespace {

constexpr std::int64_t kBlock = Partition::kBlock;

/// Layouts of all sorts: groups smaller and larger than a block, that divide it and that do not, one group, all alone.
std::vector<GroupLayout> layouts() {
  return {{1, 1},
          {100, 100},
          {3 * kBlock, 3 * kBlock},
          {3 * kBlock, 1},
          {3 * kBlock, 3},
          {3 * kBlock, 2},
          {5 * kBlock + 60, 4},
          {7 * kBlock - 8, 8},
          {4 * kBlock + 96, kBlock / 8 + 3},
          {400 * 1000, 400},
          {400 * 1000, 25}};
}

/// The ranges into which a parameter may be cut: at multiples of the block.
std::vector<Range> parts_of(const GroupLayout& layout, std::mt19937& random) {
  std::vector<Range> parts;
  for (std::int64_t at = 0; at < layout.numel;) {
    const std::int64_t count = std::min<std::int64_t>((1 + random() % 3) * kBlock, layout.numel - at);
    parts.push_back({at, count});
    at += count;
    if (random() % 3 == 0) parts.push_back({at, 0});
  }
  return parts;
}

/// Where segments of a range begin, element by element.
std::vector<std::int64_t> begins(const GroupLayout& layout, const Range& range) {
  std::vector<std::int64_t> found;
  for (std::int64_t i = range.offset; i < range.offset + range.numel; ++i) {
    if (i == range.offset || i % layout.size() == 0 || i % kBlock == 0) found.push_back(i);
  }
  return found;
}

TEST(Join, KeepsNaNWhereverItComes) {
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  const std::vector<Join> joins = {Join::kMax, Join::kMin, Join::kSum};
  for (int lost = 0; lost < 3; ++lost) {
    std::vector<double> total(3);
    start(joins, total.data());
    for (int i = 0; i < 3; ++i) {
      const std::vector<double> numbers(3, i == lost ? kNaN : i);
      join(joins, numbers.data(), total.data());
    }
    for (const double number : total) EXPECT_TRUE(std::isnan(number)) << lost;
  }
}

TEST(GroupLayout, CountsGroupsAndSegmentsAsGoingThroughTheElementsDoes) {
  std::mt19937 random(1);
  for (const GroupLayout& layout : layouts()) {
    for (const Range& part : parts_of(layout, random)) {
      if (part.numel == 0) {
        EXPECT_EQ(layout.groups_in(part), 0);
        EXPECT_EQ(layout.segments_in(part), 0);
        continue;
      }
      std::set<std::int64_t> groups;
      for (std::int64_t i = part.offset; i < part.offset + part.numel; ++i) groups.insert(i / layout.size());
      EXPECT_EQ(layout.first_group(part), *groups.begin());
      EXPECT_EQ(layout.groups_in(part), static_cast<std::int64_t>(groups.size()));
      EXPECT_EQ(layout.segments_in(part), static_cast<std::int64_t>(begins(layout, part).size()));
      std::vector<std::int64_t> crossing;
      for (const std::int64_t group : groups) {
        const bool inside =
            group * layout.size() >= part.offset && (group + 1) * layout.size() <= part.offset + part.numel;
        if (!inside) crossing.push_back(group);
      }
      EXPECT_EQ(groups_that_cross(layout, part), crossing) << layout.numel << " " << layout.groups;
    }
  }
}

TEST(GroupLayout, JoinsSegmentsToWhatTheElementsOfEachGroupGive) {
  const std::vector<Join> joins = {Join::kMax, Join::kMin, Join::kSum};
  std::mt19937 random(2);
  for (const GroupLayout& layout : layouts()) {
    const Range whole{0, layout.numel};
    std::vector<double> values(static_cast<std::size_t>(layout.numel));
    for (double& value : values) value = static_cast<double>(static_cast<int>(random() % 2000) - 1000);  // sums exactly
    std::vector<std::int64_t> cuts = begins(layout, whole);
    std::vector<double> segments;
    cuts.push_back(layout.numel);
    for (std::size_t s = 0; s + 1 < cuts.size(); ++s) {
      const auto from = values.begin() + cuts[s], to = values.begin() + cuts[s + 1];
      segments.push_back(*std::max_element(from, to));
      segments.push_back(*std::min_element(from, to));
      double sum = 0;
      for (auto at = from; at != to; ++at) sum += *at;
      segments.push_back(sum);
    }
    const std::vector<double> totals = join_segments(layout, whole, joins, segments);
    ASSERT_EQ(totals.size(), static_cast<std::size_t>(3 * layout.groups));
    for (std::int64_t group = 0; group < layout.groups; ++group) {
      const auto from = values.begin() + group * layout.size(), to = from + layout.size();
      double sum = 0;
      for (auto at = from; at != to; ++at) sum += *at;
      const double* found = totals.data() + 3 * group;
      EXPECT_EQ(found[0], *std::max_element(from, to));
      EXPECT_EQ(found[1], *std::min_element(from, to));
      EXPECT_EQ(found[2], sum);
    }
  }
}

}  // namespace
}  // namespace capstan
