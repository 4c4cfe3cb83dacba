#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/plugins/schedulers/schedule_under_test.hpp"

namespace capstan::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

Json with(std::string_view base, std::string_view changes) {
  Json params = Json::parse(base);
  const Json changed = Json::parse(changes);
  for (const auto& [name, value] : changed.as_object()) params[name] = value;
  return params;
}

constexpr const char* kGolden = R"({"cycle_min_lr": 0.001, "cycle_max_lr": 0.01, "cycle_first_step_size": 5,
    "decay_step_size": 2, "decay_lr_rate": 0.5, "decay_mom_rate": 0.1})";

using Betas = ScheduleUnderTest::Betas;

ScheduleUnderTest one_cycle(std::string_view changes = "{}", std::optional<Betas> betas = Betas{0.9, 0.99}) {
  return {"one_cycle", "OneCycle", with(kGolden, changes).dump(), {0.01}, betas};
}

TEST(OneCycle, GivesTheGoldenRates) {
  const auto schedule = one_cycle();
  const double golden[] = {.001,  .0028, .0046, .0064, .0082,      .01,        .0082, .0064,
                           .0046, .0028, .001,  .0008, .000666667, .000571429, .0005};
  for (int k = -1; k <= 13; ++k) EXPECT_NEAR(schedule.at(k), golden[k + 1], 5e-10) << "k " << k;
}

TEST(OneCycle, GivesTheGoldenMomentaWithGrowthHeldBelowOne) {
  const auto schedule = one_cycle();
  const double golden[] = {.8, .88, .86, .84, .82, .8, .82, .84, .86, .88, .9, .945, .99, .999, .999};
  for (int k = -1; k <= 13; ++k) EXPECT_NEAR(schedule.betas(k + 1).first, golden[k + 1], 1e-12) << "k " << k;
}

TEST(OneCycle, GivesTheGoldenStairs) {
  const auto schedule = one_cycle(R"({"cycle_first_step_size": 4, "cycle_first_stair_count": 2,
      "cycle_second_step_size": 6, "cycle_second_stair_count": 3, "decay_step_size": 0})");
  const double golden[] = {.001, .0055, .0055, .01, .007, .007, .004, .004, .001, .001, .001, .001};
  for (int k = 0; k <= 11; ++k) EXPECT_NEAR(schedule.at(k), golden[k], 1e-15) << "k " << k;
}

TEST(OneCycle, NeverReachesThePeakWithoutAFallingHalf) {
  const auto schedule = one_cycle(R"({"cycle_second_step_size": 0, "decay_step_size": 0})");
  EXPECT_DOUBLE_EQ(schedule.at(3), .001 + .009 * .8);
  EXPECT_DOUBLE_EQ(schedule.at(4), .001);
}

TEST(OneCycle, HoldsItsEndValuesWithoutDecay) {
  const auto schedule = one_cycle(R"({"decay_step_size": 0})");
  EXPECT_EQ(schedule.at(1000), .001);
  EXPECT_EQ(schedule.betas(1001).first, .9);
}

TEST(OneCycle, SetsTheSecondBetaFromTheStartAndSaysSo) {
  const auto schedule = one_cycle("{}", Betas{0.9, 0.95});
  EXPECT_EQ(schedule.betas(0), (Betas{.8, .99}));
  EXPECT_EQ(schedule.betas(30).second, .99);
  EXPECT_EQ(
      schedule.component.log().front(),
      "info: scheduler OneCycle: beta2 is 0.99 while momentum is cycled, not the configured 0.95. To keep it, add "
      "\"onecycle-beta2\" to capstan.corrections, or set cycle_momentum to false.");
  EXPECT_THAT(one_cycle().component.log(), IsEmpty());
}

TEST(OneCycle, KeepsTheSecondBetaAndStartsAtTheGreatestMomentumWhenCorrected) {
  const auto schedule =
      one_cycle(R"({"corrections": ["onecycle-beta2", "onecycle-momentum-start"]})", Betas{0.9, 0.95});
  EXPECT_EQ(schedule.betas(0), (Betas{.9, .95}));
  EXPECT_EQ(schedule.betas(5).second, .95);
  EXPECT_NEAR(schedule.betas(5).first, .8, 1e-15) << "the peak is as it was";
  EXPECT_THAT(schedule.component.log(), IsEmpty());
}

TEST(OneCycle, LeavesTheBetasAloneWithoutMomentumCycling) {
  EXPECT_EQ(one_cycle(R"({"cycle_momentum": false})", Betas{0.7, 0.95}).betas(3), (Betas{.7, .95}));
}

TEST(OneCycle, WarnsWhenThereAreNoBetasToCycle) {
  EXPECT_THAT(
      one_cycle("{}", std::nullopt).component.log(),
      ElementsAre("warning: scheduler.params.cycle_momentum: the optimizer has no betas, so there is no momentum "
                  "to cycle. Set it to false to silence this."));
}

TEST(OneCycle, WarnsOnceWhenTheClampFirstActs) {
  const auto schedule = one_cycle();
  for (int update = 0; update < 40; ++update) schedule.betas(update);
  ASSERT_EQ(schedule.component.log().size(), 1u);
  EXPECT_THAT(
      schedule.component.log().front(),
      ::testing::MatchesRegex("warning: scheduler.params.decay_mom_rate: momentum has grown to 1.035[0-9]*; it is "
                              "held at 0.999 from here on."));
}

TEST(OneCycle, WarnsWhenTheCycleFalls) {
  EXPECT_THAT(
      one_cycle(R"({"cycle_min_lr": [0.1]})").component.log(),
      ElementsAre("warning: scheduler.params.cycle_min_lr: 0.1 exceeds cycle_max_lr, which is 0.01, so the rate "
                  "falls where the cycle should rise."));
}

TEST(OneCycle, TakesListsAndRefusesThoseOfAnotherLength) {
  const ScheduleUnderTest two("one_cycle", "OneCycle",
                              with(kGolden, R"({"cycle_min_lr": [0.001, 0.002], "cycle_min_mom": [0.7, 0.8]})").dump(),
                              {0.01, 0.01});
  EXPECT_EQ(two.rate(0, 1), 0.002);
  EXPECT_EQ(two.betas(0, 0).first, 0.7);
  EXPECT_THAT(
      [] { one_cycle(R"({"cycle_max_mom": [1, 2]})"); },
      ThrowsMessage<std::runtime_error>(
          "[configuration] scheduler.params.cycle_max_mom: the list has 2 values, there is 1 parameter group. Give "
          "one number for all, or one value a group."));
}

TEST(OneCycle, GoesOnBehindAGivenIteration) {
  const auto schedule = one_cycle(R"({"last_batch_iteration": 2})", Betas{0.7, 0.95});
  EXPECT_EQ(schedule.rate(0), 0.01);
  EXPECT_EQ(schedule.betas(0), (Betas{0.7, 0.95}));
  EXPECT_EQ(schedule.rate(1), one_cycle().at(3));
}

}  // namespace
}  // namespace capstan::testing
