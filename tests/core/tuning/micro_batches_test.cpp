#include "core/tuning/micro_batches.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/core/tuning/recorded.hpp"

namespace capstan::testing {
namespace {

using ::testing::ElementsAre;

TEST(MicroBatches, AreTheRecordedLists) {
  int cases = 0;
  for (const Json& one : recorded_autotuning().at("micro_batches").as_array()) {
    const std::int64_t most = one.at("max").as_integer();
    const Json& cap = one.at("max_train_batch_size");
    const std::int64_t budget = device_budget(most, one.at("gas").as_integer(),
                                              cap.is_integer() ? std::optional(cap.as_integer()) : std::nullopt,
                                              static_cast<int>(one.at("gpus").as_integer()), 1);
    EXPECT_EQ(budget, one.at("max_train_batch_size_per_gpu").as_integer());
    const auto list =
        micro_batch_list(one.at("min").as_integer(), most, one.at("num_tuning_micro_batch_sizes").as_integer(), budget);
    std::vector<std::int64_t> wanted;
    for (const Json& value : one.at("micro_batches").as_array()) wanted.push_back(value.as_integer());
    EXPECT_EQ(list, wanted) << one.dump();
    ++cases;
  }
  EXPECT_EQ(cases, 5);
}

// The examples of the rule itself.
TEST(MicroBatches, LeaveOutThoseOfEqualAccumulation) {
  EXPECT_THAT(micro_batch_list(1, 16, 3, 16), ElementsAre(8, 16));
  EXPECT_THAT(micro_batch_list(1, 16, 3, 64), ElementsAre(8, 10, 12, 16));
  EXPECT_THAT(micro_batch_list(1, 7, 3, 7), ElementsAre(3, 7));
}

struct Climb {
  LargestMicroBatch found;
  std::vector<std::int64_t> tried;
};
/// On a machine where `most` samples fit and a step of m samples takes 1 + m / speed.
Climb climb(const std::vector<std::int64_t>& steps, std::int64_t most, double speed) {
  Climb made;
  made.found = largest_micro_batch_that_pays(
      steps, 0.05,
      [&](std::int64_t size) {
        made.tried.push_back(size);
        const auto samples = static_cast<double>(size);
        return size <= most ? std::optional(samples / (1 + samples / speed)) : std::nullopt;
      },
      [] { return false; });
  return made;
}

TEST(MicroBatches, GrowForAsLongAsTheyPay) {
  const Climb made = climb({1, 2, 4, 8, 16, 32, 64, 100}, 1000, 4);
  // 16 samples bring 3.2 a step's time, 32 3.56, 64 3.76, 100 3.85.
  EXPECT_THAT(made.tried, ElementsAre(1, 2, 4, 8, 16, 32, 64, 100));
  EXPECT_EQ(made.found.size, 100);
  EXPECT_FALSE(made.found.bounded);
  EXPECT_THAT(climb({1, 2, 4, 8, 16}, 1000, 0.1).tried, ElementsAre(1, 2));
}

TEST(MicroBatches, AreBisectedBelowWhatDoesNotFit) {
  const std::vector<std::int64_t> steps = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512};
  for (std::int64_t most = 1; most <= 512; ++most) {
    const Climb made = climb(steps, most, 1e6);
    EXPECT_LE(made.found.size, most);
    EXPECT_EQ(made.found.bounded, most < 512);
    EXPECT_GE(static_cast<double>(made.found.size), static_cast<double>(most) * (most < 8 ? 1 : 0.85)) << most;
    EXPECT_LE(made.tried.size(), 14u) << most;
  }
  EXPECT_EQ(climb(steps, 0, 1e6).found.size, 0);
  EXPECT_THAT(climb(steps, 0, 1e6).tried, ElementsAre(1));
}

TEST(MicroBatches, AreNoLongerLookedForOnceTheSearchIsToStop) {
  int asked = 0;
  const auto found = largest_micro_batch_that_pays(
      {1, 2, 4}, 0.05, [](std::int64_t size) { return std::optional(static_cast<double>(size)); },
      [&] { return ++asked == 2; });
  EXPECT_EQ(found.size, 2);
}

TEST(MicroBatches, TakeMemoryForTheRecordedEstimates) {
  int cases = 0;
  for (const Json& one : recorded_autotuning().at("memory").as_array()) {
    const auto bytes = estimated_bytes({one.at("num_params").as_integer(), one.at("half").as_bool(),
                                        static_cast<int>(one.at("devices").as_integer()),
                                        static_cast<int>(one.at("mp_size").as_integer())});
    for (std::size_t stage = 0; stage < 4; ++stage) {
      EXPECT_NEAR(bytes[stage], one.at("bytes").as_array()[stage].as_number(), 1e-6 * bytes[stage]) << one.dump();
    }
    ++cases;
  }
  EXPECT_GT(cases, 8);
}

TEST(MicroBatches, DrawALineThroughTwoMeasurements) {
  const ActivationBytes line = activation_line(1, 30, 2, 50);
  EXPECT_DOUBLE_EQ(line.at(1), 30);
  EXPECT_DOUBLE_EQ(line.at(10), 210);
  // Memory that seems to shrink is noise.
  EXPECT_DOUBLE_EQ(activation_line(1, 30, 2, 20).at(100), 30);
}

}  // namespace
}  // namespace capstan::testing
