#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/plugins/schedulers/schedule_under_test.hpp"

namespace capstan::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

ScheduleUnderTest warmup(std::string_view params, std::vector<double> base_lrs = {0.01}) {
  return {"warmup_lr", "WarmupLR", params, std::move(base_lrs)};
}
ScheduleUnderTest decay(std::string_view params) { return {"warmup_decay_lr", "WarmupDecayLR", params}; }
ScheduleUnderTest cosine(std::string_view params) { return {"warmup_cosine_lr", "WarmupCosineLR", params}; }

TEST(WarmupLR, GivesTheGoldenValuesOfTheLogarithmicWarmup) {
  const auto schedule = warmup(R"({"warmup_max_lr": 1e-3, "warmup_num_steps": 10})");
  const double golden[] = {.0003010300, .0004771213, .0006020600, .0006989700,
                           .0007781513, .0008450980, .0009030900, .0009542425};
  for (int k = 1; k <= 8; ++k) EXPECT_NEAR(schedule.at(k), golden[k - 1], 6e-11) << "k " << k;
  for (const int k : {9, 10, 1000}) EXPECT_DOUBLE_EQ(schedule.at(k), 1e-3) << "k " << k;
}

TEST(WarmupLR, GivesTheGoldenValuesOfTheLinearWarmup) {
  const auto schedule =
      warmup(R"({"warmup_min_lr": 1e-4, "warmup_max_lr": 1e-3, "warmup_num_steps": 10, "warmup_type": "linear"})");
  EXPECT_DOUBLE_EQ(schedule.at(0), .0001);
  EXPECT_DOUBLE_EQ(schedule.at(1), .00019);
  EXPECT_DOUBLE_EQ(schedule.at(5), .00055);
  EXPECT_DOUBLE_EQ(schedule.at(9), .00091);
  EXPECT_DOUBLE_EQ(schedule.at(10), .001);
  EXPECT_DOUBLE_EQ(schedule.at(11), .001);
}

TEST(WarmupLR, RunsTheFirstTwoUpdatesAtTheMinimum) {
  const auto schedule = warmup(R"({"warmup_min_lr": 1e-4, "warmup_max_lr": 1e-3, "warmup_num_steps": 10})");
  EXPECT_EQ(schedule.rate(0), 1e-4);
  EXPECT_EQ(schedule.rate(1), 1e-4);
  EXPECT_GT(schedule.rate(2), 1e-4);
}

TEST(WarmupLR, TreatsOneWarmupStepAsTwo) {
  const auto schedule = warmup(R"({"warmup_min_lr": 1e-4, "warmup_max_lr": 1e-3, "warmup_num_steps": 1})");
  EXPECT_EQ(schedule.at(0), 1e-4);
  EXPECT_EQ(schedule.at(1), 1e-3);
}

TEST(WarmupLR, RisesToEachGroupsOwnRateUnlessToldOtherwise) {
  const auto schedule = warmup(R"({"warmup_num_steps": 10})", {0.01, 0.5});
  EXPECT_EQ(schedule.rate(100, 0), 0.01);
  EXPECT_EQ(schedule.rate(100, 1), 0.5);
}

TEST(WarmupLR, TakesOneValueAGroup) {
  const auto schedule = warmup(R"({"warmup_min_lr": [0.1, 0.2], "warmup_max_lr": [1, 2]})", {0.01, 0.5});
  EXPECT_EQ(schedule.rate(0, 1), 0.2);
  EXPECT_EQ(schedule.rate(1001, 0), 1);
  EXPECT_EQ(schedule.rate(1001, 1), 2);
}

TEST(WarmupLR, RefusesAListOfAnotherLengthThanTheGroups) {
  EXPECT_THAT(
      [] {
        warmup(R"({"warmup_min_lr": [0.1, 0.2], "warmup_max_lr": 1})", {1, 1, 1});
      },
      ThrowsMessage<std::runtime_error>(
          "[configuration] scheduler.params.warmup_min_lr: the list has 2 values, there are 3 parameter groups. "
          "Give one number for all, or one value a group."));
  EXPECT_THAT(
      [] {
        warmup(R"({"warmup_max_lr": [1]})", {1, 1});
      },
      ThrowsMessage<std::runtime_error>(
          "[configuration] scheduler.params.warmup_max_lr: the list has 1 value, there are 2 parameter groups. "
          "Give one number for all, or one value a group."));
}

TEST(WarmupLR, WarnsWhenItFalls) {
  EXPECT_THAT(
      warmup(R"({"warmup_min_lr": [0.1], "warmup_max_lr": 0.01})").component.log(),
      ElementsAre("warning: scheduler.params.warmup_min_lr: 0.1 exceeds warmup_max_lr, which is 0.01, so the rate "
                  "falls during the warm-up."));
  EXPECT_THAT(
      warmup(R"({"warmup_min_lr": 0.1})").component.log(),
      ElementsAre("warning: scheduler.params.warmup_min_lr: 0.1 exceeds warmup_max_lr, which is 0.01, so the rate "
                  "falls during the warm-up."));
  EXPECT_THAT(warmup("{}").component.log(), IsEmpty());
}

TEST(WarmupLR, GoesOnBehindAGivenIteration) {
  const char* params = R"({"warmup_max_lr": 1e-3, "warmup_num_steps": 10, "last_batch_iteration": 3})";
  const auto schedule = warmup(params);
  const auto fresh = warmup(R"({"warmup_max_lr": 1e-3, "warmup_num_steps": 10})");
  EXPECT_EQ(schedule.rate(0), 0.01) << "nothing is written at the start: the optimizer's own rate";
  EXPECT_EQ(schedule.rate(1), fresh.at(4));
  EXPECT_EQ(schedule.rate(2), fresh.at(5));
}

TEST(WarmupLR, IsAPureFunctionOfTheIndex) {
  const auto schedule = warmup(R"({"warmup_max_lr": 1e-3, "warmup_num_steps": 10})");
  const double seventh = schedule.rate(7);
  schedule.rate(1000), schedule.rate(0);
  EXPECT_EQ(schedule.rate(7), seventh);
}

TEST(WarmupDecayLR, GivesTheGoldenValues) {
  const auto schedule =
      decay(R"({"warmup_max_lr": 1e-3, "warmup_num_steps": 10, "total_num_steps": 20, "warmup_type": "linear"})");
  EXPECT_DOUBLE_EQ(schedule.at(9), .0009);
  EXPECT_DOUBLE_EQ(schedule.at(10), .001);
  EXPECT_DOUBLE_EQ(schedule.at(11), .0009);
  EXPECT_DOUBLE_EQ(schedule.at(19), .0001);
  EXPECT_DOUBLE_EQ(schedule.at(20), 0);
  EXPECT_DOUBLE_EQ(schedule.at(21), 0);
}

TEST(WarmupDecayLR, DecaysToTheMinimumFromOneThousandthByDefault) {
  const auto schedule = decay(R"({"warmup_min_lr": 1e-4, "warmup_num_steps": 10, "total_num_steps": 20})");
  EXPECT_DOUBLE_EQ(schedule.at(10), 1e-3);
  EXPECT_DOUBLE_EQ(schedule.at(500), 1e-4);
}

TEST(WarmupDecayLR, EndsRightAfterALongWarmup) {
  const auto schedule = decay(R"({"warmup_num_steps": 10, "total_num_steps": 10})");
  EXPECT_EQ(schedule.at(10), 0);
}

TEST(WarmupDecayLR, WarnsWhenItFallsAndChecksItsLists) {
  EXPECT_THAT(
      decay(R"({"warmup_min_lr": [1], "total_num_steps": 2000})").component.log(),
      ElementsAre("warning: scheduler.params.warmup_min_lr: 1 exceeds warmup_max_lr, which is 0.001, so the rate "
                  "falls during the warm-up."));
  EXPECT_THAT([] { decay(R"({"warmup_max_lr": [1, 2], "total_num_steps": 2000})"); },
              ThrowsMessage<std::runtime_error>(
                  "[configuration] scheduler.params.warmup_max_lr: the list has 2 values, there is 1 parameter group. "
                  "Give one number for all, or one value a group."));
}

TEST(WarmupCosineLR, GivesTheGoldenValuesOfTheLinearWarmup) {
  const auto schedule =
      cosine(R"({"warmup_num_steps": 10, "total_num_steps": 20, "cos_min_ratio": 0.01, "warmup_type": "linear"})");
  const std::pair<int, double> golden[] = {{0, 0},
                                           {5, .005},
                                           {9, .009},
                                           {10, .009757729756},
                                           {11, .009054634122},
                                           {12, .007959536999},
                                           {13, .006579634122},
                                           {14, .00505},
                                           {15, .003520365878},
                                           {16, .002140463001},
                                           {17, .001045365878},
                                           {18, .0003422702443},
                                           {19, .0001},
                                           {20, .0001}};
  for (const auto& [k, rate] : golden) EXPECT_NEAR(schedule.at(k), rate, 5e-13) << "k " << k;
}

TEST(WarmupCosineLR, GivesTheGoldenValuesOfTheLogarithmicWarmup) {
  const auto schedule =
      cosine(R"({"warmup_num_steps": 10, "total_num_steps": 20, "cos_min_ratio": 0.01, "warmup_min_ratio": 0.1})");
  EXPECT_DOUBLE_EQ(schedule.at(0), .001);
  EXPECT_NEAR(schedule.at(1), .003709269961, 5e-13);
  EXPECT_NEAR(schedule.at(4), .007290730039, 5e-13);
  EXPECT_DOUBLE_EQ(schedule.at(9), .01);
}

TEST(WarmupCosineLR, StartsAtZeroWhateverTheMinimumIs) {
  EXPECT_EQ(cosine(R"({"warmup_min_ratio": 0.1, "total_num_steps": 2000})").rate(0), 0);
}

TEST(WarmupCosineLR, ReachesItsTopWhenCorrected) {
  const char* params = R"({"warmup_num_steps": 10, "total_num_steps": 20, "cos_min_ratio": 0.01,
                           "warmup_type": "linear", "corrections": ["onecycle-beta2", "cosine-start"]})";
  const auto schedule = cosine(params);
  EXPECT_DOUBLE_EQ(schedule.at(10), .01);
  EXPECT_NEAR(schedule.at(11), .009757729756, 5e-13);
  EXPECT_DOUBLE_EQ(schedule.at(20), .0001);
}

TEST(WarmupCosineLR, EndsRightAfterALongWarmup) {
  const auto schedule = cosine(R"({"warmup_num_steps": 10, "total_num_steps": 5, "cos_min_ratio": 0.01})");
  EXPECT_DOUBLE_EQ(schedule.at(10), .0001);
}

}  // namespace
}  // namespace capstan::testing
