#include "core/precision/loss_scaler.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/errors.hpp"

namespace capstan {
namespace {

PrecisionConfig fp16(double scale_power, std::int64_t window, int hysteresis, bool consecutive = false) {
  PrecisionConfig precision;
  precision.compute = Precision::kFp16;
  precision.scales_loss = true;
  precision.initial_scale_power = static_cast<int>(scale_power);
  precision.loss_scale_window = window;
  precision.hysteresis = hysteresis;
  precision.consecutive_hysteresis = consecutive;
  return precision;
}

/// The scale after each step of a pattern: '.' clean, 'X' overflow.
std::vector<double> trace(LossScaler& scaler, const std::string& pattern) {
  std::vector<double> scales;
  for (const char step : pattern) {
    scaler.update(step == 'X');
    scales.push_back(scaler.scale());
  }
  return scales;
}

using Scales = std::vector<double>;

// The traces are those of the reference's loss-scaling section (start 256, window 3, hysteresis 2, floor 1).
TEST(LossScaler, GrowsAtTheFourthCleanStepAndThenEveryWindow) {
  LossScaler scaler(fp16(8, 3, 2));
  EXPECT_EQ(trace(scaler, "..........."), (Scales{256, 256, 256, 512, 512, 512, 1024, 1024, 1024, 2048, 2048}));
}

TEST(LossScaler, ToleratesAnOverflowPerHysteresisUntilItGrows) {
  LossScaler scaler(fp16(8, 3, 2));
  EXPECT_EQ(trace(scaler, "X.X..XX.....X"), (Scales{256, 256, 128, 128, 128, 64, 32, 32, 32, 32, 64, 64, 64}));
}

TEST(LossScaler, RefillsTheToleranceAfterEachCleanStepWhenConsecutive) {
  LossScaler scaler(fp16(8, 3, 2, true));
  EXPECT_EQ(trace(scaler, "X.X.X.X..."), (Scales(10, 256)));
}

TEST(LossScaler, HalvesAtOnceWithHysteresisOne) {
  LossScaler scaler(fp16(8, 3, 1));
  EXPECT_EQ(trace(scaler, "X....X...."), (Scales{128, 128, 128, 128, 256, 128, 128, 128, 128, 256}));
}

TEST(LossScaler, StopsOnAnOverflowAtTheFloor) {
  LossScaler scaler(fp16(2, 3, 1));
  EXPECT_EQ(trace(scaler, "XX"), (Scales{2, 1}));
  EXPECT_THAT(
      [&] { scaler.update(true); },
      testing::ThrowsMessage<RuntimeFault>(testing::HasSubstr("fp16: gradients overflow at the smallest loss scale")));
}

TEST(LossScaler, KeepsAFixedScale) {
  PrecisionConfig precision = fp16(8, 3, 1);
  precision.loss_scale = 1024;
  LossScaler scaler(precision);
  EXPECT_EQ(trace(scaler, "X..X"), (Scales(4, 1024)));
}

TEST(LossScaler, IsOneOutsideFp16) { EXPECT_EQ(LossScaler(PrecisionConfig{}).scale(), 1.0); }

TEST(LossScaler, GoesOnFromASavedState) {
  const std::string pattern = "X.X..XX.....X....X.....";
  LossScaler whole(fp16(8, 3, 2));
  const Scales expected = trace(whole, pattern);

  LossScaler first(fp16(8, 3, 2));
  Scales scales = trace(first, pattern.substr(0, 9));
  LossScaler second(fp16(8, 3, 2));
  const Json state = Json::parse(first.save().dump());
  second.restore(LossScaler::read(StateReader(state, "state.json")));
  for (const double scale : trace(second, pattern.substr(9))) scales.push_back(scale);
  EXPECT_EQ(scales, expected);
}

TEST(LossScaler, StaysFixedWhateverWasSaved) {
  PrecisionConfig fixed = fp16(8, 3, 2);
  fixed.loss_scale = 128;
  LossScaler scaler(fixed);
  scaler.restore({.scale = 4, .step = 9, .last_overflow = 3, .hysteresis = 1});
  EXPECT_EQ(scaler.scale(), 128);
}

TEST(LossScaler, RefusesAnImpossibleState) {
  for (const char* text : {R"({"scale": 0, "step": 5, "last_overflow": -1, "hysteresis": 2})",
                           R"({"scale": 16, "step": -5, "last_overflow": -1, "hysteresis": 2})",
                           R"({"scale": 16, "step": 5, "last_overflow": -2, "hysteresis": 2})",
                           R"({"scale": 16, "step": 5, "last_overflow": -1})"}) {
    const Json state = Json::parse(text);
    EXPECT_THAT([&] { LossScaler::read(StateReader(state, "state.json")); },
                testing::ThrowsMessage<RuntimeFault>(testing::StartsWith("state.json: ")));
  }
}

}  // namespace
}  // namespace capstan
