#include "core/tuning/metric.hpp"

#include <gtest/gtest.h>

namespace capstan {
namespace {

TuningPoint point(std::int64_t micro_batch, std::int64_t accumulation, int devices) {
  TuningPoint made;
  made.micro_batch = micro_batch;
  made.accumulation = accumulation;
  made.train_batch = micro_batch * accumulation * devices;
  return made;
}

TrialOutcome measured(double latency, double flops) {
  TrialOutcome outcome;
  outcome.outcome = "ok";
  outcome.latency = latency;
  outcome.flops = flops;
  return outcome;
}

TEST(TuningMetric, IsSamplesASecondOrMicrosecondsOfAStep) {
  TuningMetric throughput("throughput"), latency("latency");
  const TuningPoint four = point(2, 1, 2);
  const TrialOutcome outcome = measured(0.05, 7e9);
  EXPECT_DOUBLE_EQ(throughput.value(four, throughput.seconds(four, outcome)), 80);
  EXPECT_EQ(throughput.text(four, 0.05), "80.00 samples/s");
  EXPECT_EQ(throughput.text(four, 0.01), "400.0 samples/s");
  EXPECT_DOUBLE_EQ(latency.value(four, latency.seconds(four, outcome)), 50'000);
  EXPECT_EQ(latency.text(four, 0.05), "50.0 ms a step");
  EXPECT_EQ(throughput.samples(four), 4);
  EXPECT_EQ(latency.samples(four), 1);
}

TEST(TuningMetric, IsTheMeasuredRateOfOperations) {
  TuningMetric flops("FLOPS");
  // Where every sample needs as many operations, the compared seconds are the measured ones.
  const TuningPoint small = point(2, 3, 2), large = point(8, 1, 2);
  const double operations_of_a_sample = 5e8;
  const double small_rate = operations_of_a_sample * 6 / 0.3, large_rate = operations_of_a_sample * 8 / 0.2;
  EXPECT_DOUBLE_EQ(flops.seconds(small, measured(0.3, small_rate)), 0.3);
  EXPECT_NEAR(flops.seconds(large, measured(0.2, large_rate)), 0.2, 1e-12);
  EXPECT_NEAR(flops.value(large, 0.2), large_rate, 1);
  // Where they are others, it is the rate that decides: it is lower here, though the step is shorter.
  const TrialOutcome skips = measured(0.1, large_rate / 2);
  EXPECT_NEAR(flops.value(large, flops.seconds(large, skips)), large_rate / 2, 1);
  EXPECT_GT(flops.seconds(large, skips), flops.seconds(large, measured(0.2, large_rate)));
  EXPECT_EQ(flops.text(large, 0.2), "20.00 GFLOPS a device");
}

}  // namespace
}  // namespace capstan
