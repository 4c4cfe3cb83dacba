#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/plugins/schedulers/schedule_under_test.hpp"

namespace capstan::testing {
namespace {

using ::testing::ThrowsMessage;

ScheduleUnderTest range_test(std::string_view params) { return {"lr_range_test", "LRRangeTest", params}; }

TEST(LRRangeTest, GivesTheGoldenValuesOfTheContinuousForm) {
  const auto schedule = range_test(R"({"lr_range_test_step_size": 5})");
  const std::pair<int, double> golden[] = {{-1, .001}, {0, .0012}, {1, .0014}, {4, .002}, {9, .003}};
  for (const auto& [k, rate] : golden) EXPECT_DOUBLE_EQ(schedule.at(k), rate) << "k " << k;
}

TEST(LRRangeTest, GivesTheGoldenValuesOfTheStaircase) {
  const auto schedule =
      range_test(R"({"lr_range_test_step_size": 5, "lr_range_test_step_rate": 2, "lr_range_test_staircase": true})");
  for (int k = -1; k <= 13; ++k) {
    EXPECT_DOUBLE_EQ(schedule.at(k), k < 4 ? .001 : k < 9 ? .003 : .005) << "k " << k;
  }
}

TEST(LRRangeTest, RefusesAListOfAnotherLengthThanTheGroups) {
  EXPECT_THAT([] { range_test(R"({"lr_range_test_min_lr": [1, 2]})"); },
              ThrowsMessage<std::runtime_error>(
                  "[configuration] scheduler.params.lr_range_test_min_lr: the list has 2 values, there is 1 parameter "
                  "group. Give one number for all, or one value a group."));
}

}  // namespace
}  // namespace capstan::testing
