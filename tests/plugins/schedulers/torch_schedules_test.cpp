#include <gtest/gtest.h>

#include <cmath>

#include "tests/plugins/schedulers/schedule_under_test.hpp"

namespace capstan::testing {
namespace {

// torch.optim.lr_scheduler.CosineAnnealingLR(SGD(lr=0.1), T_max=4, eta_min=0.02): get_last_lr() before each of 10
// steps.
constexpr double kCosine[] = {0.1,
                              0.08828427124746191,
                              0.060000000000000005,
                              0.03171572875253812,
                              0.02,
                              0.03171572875253809,
                              0.05999999999999994,
                              0.08828427124746185,
                              0.09999999999999992,
                              0.08828427124746185};
// torch.optim.lr_scheduler.StepLR(SGD(lr=0.1), step_size=3, gamma=0.5), likewise.
constexpr double kStep[] = {0.1, 0.1, 0.1, 0.05, 0.05, 0.05, 0.025, 0.025, 0.025, 0.0125};

TEST(CosineAnnealingLR, GivesTorchsRates) {
  const ScheduleUnderTest schedule("cosine_annealing_lr", "CosineAnnealingLR", R"({"T_max": 4, "eta_min": 0.02})",
                                   {0.1});
  for (int update = 0; update < 10; ++update) EXPECT_NEAR(schedule.rate(update), kCosine[update], 1e-15);
}

TEST(CosineAnnealingLR, GoesOnBehindAGivenEpoch) {
  const ScheduleUnderTest schedule("cosine_annealing_lr", "CosineAnnealingLR",
                                   R"({"T_max": 4, "eta_min": 0.02, "last_epoch": 1})", {0.1});
  EXPECT_NEAR(schedule.rate(0), kCosine[2], 1e-15);
}

TEST(StepLR, GivesTorchsRates) {
  const ScheduleUnderTest schedule("step_lr", "StepLR", R"({"step_size": 3, "gamma": 0.5})", {0.1});
  for (int update = 0; update < 10; ++update) EXPECT_DOUBLE_EQ(schedule.rate(update), kStep[update]);
}

TEST(StepLR, DividesByTenByDefaultInEveryGroup) {
  const ScheduleUnderTest schedule("step_lr", "StepLR", R"({"step_size": 3})", {0.1, 2});
  EXPECT_DOUBLE_EQ(schedule.rate(3, 1), 0.2);
  EXPECT_DOUBLE_EQ(schedule.rate(6, 0), 0.001);
}

TEST(StepLR, GoesOnBehindAGivenEpoch) {
  const ScheduleUnderTest schedule("step_lr", "StepLR", R"({"step_size": 3, "gamma": 0.5, "last_epoch": 4})", {0.1});
  EXPECT_DOUBLE_EQ(schedule.rate(0), 0.05);
  EXPECT_DOUBLE_EQ(schedule.rate(1), 0.025);
}

}  // namespace
}  // namespace capstan::testing
