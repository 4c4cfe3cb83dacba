#include "core/elastic/snapshot_pace.hpp"

#include <gtest/gtest.h>

namespace capstan {
namespace {

TEST(SnapshotPace, TakesEveryNthStepWhateverItCosts) {
  SnapshotPace pace(3, 0.01);
  pace.note_cost(1e6);
  for (std::int64_t step = 1; step <= 12; ++step) EXPECT_EQ(pace.is_due(step, 0), step % 3 == 0) << step;
}

TEST(SnapshotPace, TakesTheFirstAtOnceToLearnItsCost) { EXPECT_TRUE(SnapshotPace(0, 0.01).is_due(1, 0)); }

TEST(SnapshotPace, SpendsNoMoreThanItsShareOfTheTime) {
  for (const double overhead : {0.001, 0.01, 0.1}) {
    SnapshotPace pace(0, overhead);
    constexpr double kStep = 0.2, kCost = 0.03;
    double now = 0, last = 0, spent = 0;
    for (std::int64_t step = 1; step <= 20'000; ++step) {
      now += kStep;
      if (!pace.is_due(step, now - last)) continue;
      last = now;
      spent += kCost;
      now += kCost;
      pace.note_cost(kCost);
    }
    EXPECT_LE(spent, overhead * now);
    EXPECT_GE(spent, 0.4 * overhead * now);
  }
}

TEST(SnapshotPace, FollowsACostThatChanges) {
  SnapshotPace pace(0, 0.01);
  pace.note_cost(0.01);
  EXPECT_TRUE(pace.is_due(1, 2));
  for (int i = 0; i < 20; ++i) pace.note_cost(1);
  EXPECT_FALSE(pace.is_due(2, 99));
  EXPECT_TRUE(pace.is_due(3, 151));
}

}  // namespace
}  // namespace capstan
