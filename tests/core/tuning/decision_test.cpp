#include "core/tuning/decision.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace capstan::testing {
namespace {

TEST(Decision, HasStudentsInterval) {
  // Mean 10, standard deviation 1, three runs: 4.303 / sqrt(3).
  EXPECT_NEAR(half_interval({9, 10, 11}), 4.303 / std::sqrt(3.0), 1e-3);
  EXPECT_TRUE(std::isinf(half_interval({9})));
}

TEST(Decision, FallsWhereIntervalsPart) {
  EXPECT_TRUE(decided({1.00, 1.01, 1.02}, {2.00, 2.01, 2.02}));
  EXPECT_FALSE(decided({1.0, 1.5, 2.0}, {1.2, 1.6, 2.2}));
}

TEST(Decision, FallsWhereBothAreTheSameWithinOnePercent) {
  EXPECT_TRUE(decided({1.000, 1.001, 1.000, 1.001}, {1.001, 1.002, 1.001, 1.002}));
}

TEST(Decision, RepeatsTheLeadersInTurns) {
  std::vector<Costs> points = {{1.0}, {3.0}, {1.1}, {}};
  EXPECT_TRUE(next_repeat(points, 6).needed);
  EXPECT_EQ(next_repeat(points, 6).point, 0u);
  points[0].push_back(1.2);
  // Runs of one point are a tenth apart, so that the other may as well be the better one.
  EXPECT_EQ(next_repeat(points, 6).point, 2u);
  points[2].push_back(1.0);
  EXPECT_NE(next_repeat(points, 6).point, 1u);
}

TEST(Decision, RepeatsWhatNoiseMayHavePutBehind) {
  // Runs deviate by a fifth: 1.2 and 1.25 may be as good as the best, 2 cannot.
  std::vector<Costs> points = {{1.0, 1.3, 1.0}, {2.0}, {1.2}, {1.25}};
  EXPECT_EQ(next_repeat(points, 6).point, 2u);
  points[2] = {1.2, 1.4, 1.3};
  EXPECT_EQ(next_repeat(points, 6).point, 3u);
  // Runs that hardly deviate leave no doubt.
  EXPECT_FALSE(next_repeat({{1.0, 1.001, 1.0}, {2.0, 2.0}, {1.2, 1.201}, {1.25}}, 6).needed);
}

TEST(Decision, EndsWhenDecidedOrAtTheMostRuns) {
  EXPECT_FALSE(next_repeat({{1.0, 1.0, 1.0}, {2.0, 2.0, 2.0}}, 6).needed);
  EXPECT_FALSE(next_repeat({{1.0, 3.0}, {1.1, 2.9}}, 2).needed);
  EXPECT_TRUE(next_repeat({{1.0, 3.0}, {1.1, 2.9}}, 3).needed);
  EXPECT_FALSE(next_repeat({{1.0}, {}}, 6).needed);
}

TEST(Decision, ChoosesByTheMean) {
  EXPECT_EQ(best_point({{}, {5.0, 1.0, 7.0}, {4.0}}), 2u);
  EXPECT_EQ(best_point({{}, {}}), 2u);
}

}  // namespace
}  // namespace capstan::testing
