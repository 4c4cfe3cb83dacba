#include "core/compression/select_largest.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "tests/support/ranks.hpp"

namespace capstan {
namespace {

using Values = std::vector<float>;

/// Values of a set as they lie on the ranks: of each part, of each rank.
using Set = std::vector<std::vector<Values>>;

/// What sorting gives: the threshold, and who is among the k largest.
struct Sorted {
  float threshold = std::numeric_limits<float>::infinity();
  std::vector<std::vector<std::vector<std::uint8_t>>> masks;
};

Sorted sorted(const Set& set, std::uint64_t k) {
  struct Place {
    float value;
    std::size_t part, rank, element;
  };
  std::vector<Place> all;
  Sorted made;
  for (std::size_t p = 0; p < set.size(); ++p) {
    made.masks.emplace_back();
    for (std::size_t r = 0; r < set[p].size(); ++r) {
      made.masks[p].emplace_back(set[p][r].size());
      for (std::size_t i = 0; i < set[p][r].size(); ++i) all.push_back({set[p][r][i], p, r, i});
    }
  }
  std::stable_sort(all.begin(), all.end(), [](const Place& a, const Place& b) { return a.value > b.value; });
  for (std::uint64_t i = 0; i < k; ++i) made.masks[all[i].part][all[i].rank][all[i].element] = 1;
  if (k > 0) made.threshold = all[k - 1].value;
  return made;
}

/// Compares the selection of these sets, on one rank or several, with sorting.
void expect_as_sorted(const std::vector<Set>& sets, const std::vector<std::uint64_t>& k, Communicator* ranks) {
  const auto own = static_cast<std::size_t>(ranks ? ranks->rank() : 0);
  std::vector<SelectionPart> parts;
  std::vector<std::vector<std::uint8_t>> masks;
  for (const Set& set : sets) {
    for (const auto& part : set) masks.emplace_back(part[own].size(), std::uint8_t{7});
  }
  std::size_t next = 0;
  for (std::size_t s = 0; s < sets.size(); ++s) {
    for (const auto& part : sets[s]) {
      parts.push_back({part[own].data(), static_cast<std::int64_t>(part[own].size()), static_cast<std::uint32_t>(s),
                       masks[next++].data()});
    }
  }
  const std::vector<float> thresholds = select_largest(parts, k, ranks, "test");
  next = 0;
  for (std::size_t s = 0; s < sets.size(); ++s) {
    const Sorted expected = sorted(sets[s], k[s]);
    EXPECT_EQ(thresholds[s], expected.threshold) << s;
    for (std::size_t p = 0; p < sets[s].size(); ++p) EXPECT_EQ(masks[next++], expected.masks[p][own]) << s << " " << p;
  }
}

Values random_values(std::mt19937_64& random, std::size_t count, std::size_t distinct = 0) {
  std::normal_distribution<float> normal;
  Values values(count);
  for (float& value : values) {
    value = distinct == 0 ? normal(random) : static_cast<float>(random() % distinct) - static_cast<float>(distinct / 2);
  }
  return values;
}

TEST(SelectLargest, TakesWhatSortingPutsFirst) {
  std::mt19937_64 random(5);
  std::vector<Set> sets;
  std::vector<std::uint64_t> k;
  for (int i = 0; i < 200; ++i) {
    Set set(random() % 3 + 1, {1, Values()});
    std::uint64_t numel = 0;
    for (auto& part : set) {
      part[0] = random_values(random, random() % 50, i % 3 == 0 ? 0 : i % 3 * 4);
      numel += part[0].size();
    }
    sets.push_back(set);
    k.push_back(random() % (numel + 1));
  }
  expect_as_sorted(sets, k, nullptr);
}

TEST(SelectLargest, TakesThemOfManyValuesAsWell) {
  std::mt19937_64 random(6);
  std::vector<Set> sets;
  std::vector<std::uint64_t> k;
  for (const std::size_t distinct : {0u, 3u, 1000u}) {
    for (const double share : {0.0, 1e-5, 0.1, 0.5, 0.999, 1.0}) {
      sets.push_back({{random_values(random, 150'000, distinct)}, {random_values(random, 70'000, distinct)}});
      k.push_back(static_cast<std::uint64_t>(share * 220'000));
    }
  }
  expect_as_sorted(sets, k, nullptr);
}

TEST(SelectLargest, FindsThemWhereASampleMisleads) {
  // Every 107th value, which is what a sample of 2,048 of these sees, is far above the others.
  Values values(220'000);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = (i % 107 == 0 ? 1e6f : 0.0f) + static_cast<float>(i) * 1e-3f;
  }
  expect_as_sorted({{{values}}}, {200'000}, nullptr);
}

TEST(SelectLargest, KnowsZerosInfinitiesAndTheSmallestNumbers) {
  const float infinity = std::numeric_limits<float>::infinity(), tiny = std::numeric_limits<float>::denorm_min();
  const Values values = {0.0f, -0.0f, infinity, -infinity, tiny, -tiny, 1.0f, -1.0f, 0.0f, -0.0f};
  std::vector<Set> sets;
  std::vector<std::uint64_t> k;
  for (std::uint64_t i = 0; i <= values.size(); ++i) {
    sets.push_back({{values}});
    k.push_back(i);
  }
  expect_as_sorted(sets, k, nullptr);
}

TEST(SelectLargest, IsTheSameOverRanks) {
  test::expect_on_ranks(3, [](Communicator& ranks) {
    std::mt19937_64 random(7);  // all ranks make the values of all
    std::vector<Set> sets;
    std::vector<std::uint64_t> k;
    for (const std::size_t distinct : {0u, 5u, 0u, 100u}) {
      Set set;
      for (int part = 0; part < 2; ++part) {
        set.push_back({random_values(random, 60'000, distinct), {}, random_values(random, 33'000, distinct)});
      }
      sets.push_back(set);
      k.push_back(70'001);
    }
    sets.push_back({{{}, {1, 2, 2}, {2, 3}}});
    k.push_back(3);
    expect_as_sorted(sets, k, &ranks);
  });
}

TEST(SelectLargest, RefusesMoreThanThereAre) {
  const Values values = {1, 2};
  EXPECT_ANY_THROW(select_largest({{values.data(), 2, 0, nullptr}}, {3}, nullptr, "test"));
}

}  // namespace
}  // namespace capstan
