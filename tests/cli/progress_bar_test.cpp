#include "cli/progress_bar.hpp"

#include <gmock/gmock.h>

#include <cmath>

#include "core/text/numbers.hpp"

namespace capstan::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

const StepProgress kFacts{.step = 120,
                          .steps = 200,
                          .loss = 2.45312,
                          .lr = 3e-4,
                          .samples_per_second = 112.04,
                          .tokens_per_second = 14336.6,
                          .seconds_left = 41.2};

TEST(ProgressBar, ShowsStepLossRateSpeedAndTimeLeft) {
  EXPECT_EQ(bar_text(kFacts, 120),
            "step 120/200 [==================>           ] loss 2.4531  lr 0.0003  112.0 samples/s  14,336 tokens/s  "
            "ETA 0:00:42");
}

TEST(ProgressBar, NeverFillsTheLastColumn) {
  for (int width = 1; width < 150; ++width) {
    EXPECT_LT(bar_text(kFacts, width).size(), static_cast<std::size_t>(width)) << width;
  }
}

TEST(ProgressBar, DropsTheBarBeforeTheNumbersInANarrowTerminal) {
  const std::string text = bar_text(kFacts, 90);

  EXPECT_THAT(text, Not(HasSubstr("[")));
  EXPECT_THAT(text, StartsWith("step 120/200 loss 2.4531"));
}

TEST(ProgressBar, IsFullAtTheEndAndEmptyAtTheStart) {
  StepProgress facts = kFacts;
  facts.step = 200;
  EXPECT_THAT(bar_text(facts, 130), HasSubstr("[==============================]"));
  facts.step = 0;
  EXPECT_THAT(bar_text(facts, 130), HasSubstr("[>                             ]"));
}

TEST(PlainLine, HasTheSameFactsWithoutABar) {
  EXPECT_EQ(plain_text(kFacts), "loss=2.4531, samples/s=112.0, tokens/s=14337, eta=0:00:42");
}

TEST(Forecast, CountsOneStepInTheSingular) {
  StepProgress facts = kFacts;
  facts.step = facts.steps - 1;
  EXPECT_EQ(Forecast().after_step(facts, 100), "1 step to go, about 0:00:42 at the pace of the first");
}

TEST(Forecast, IsToldOnceAfterTheThirdStep) {
  Forecast forecast;
  EXPECT_EQ(forecast.after_step(kFacts, 0.5), std::nullopt);
  EXPECT_EQ(forecast.after_step(kFacts, 1.0), std::nullopt);
  EXPECT_EQ(forecast.after_step(kFacts, 1.5), "80 steps to go, about 0:00:42 at the pace of the first");
  EXPECT_EQ(forecast.after_step(kFacts, 2.0), std::nullopt);
}

TEST(Forecast, DoesNotWaitForTheThirdOfLongSteps) {
  Forecast forecast;
  EXPECT_EQ(forecast.after_step(kFacts, 6.0), "80 steps to go, about 0:00:42 at the pace of the first");
}

TEST(Forecast, IsNotToldOfAShortRun) {
  StepProgress facts = kFacts;
  facts.seconds_left = 3;
  Forecast forecast;
  for (int step = 0; step < 5; ++step) EXPECT_EQ(forecast.after_step(facts, step), std::nullopt);
  facts.seconds_left = 100;
  EXPECT_EQ(forecast.after_step(facts, 6), std::nullopt);
}

TEST(Pace, AveragesTheStepsBehindTheFirstAndThenForgets) {
  Pace pace(32, 128);
  EXPECT_EQ(pace.samples_per_second(), 0);
  pace.step_took(64.0);
  EXPECT_DOUBLE_EQ(pace.samples_per_second(), 0.5);
  pace.step_took(1.0);
  EXPECT_DOUBLE_EQ(pace.samples_per_second(), 32);
  pace.step_took(3.0);
  EXPECT_DOUBLE_EQ(pace.samples_per_second(), 16);
  EXPECT_DOUBLE_EQ(pace.tokens_per_second(), 2048);
  EXPECT_DOUBLE_EQ(pace.seconds_for(10), 20);
  for (int i = 0; i < 200; ++i) pace.step_took(0.5);
  EXPECT_NEAR(pace.samples_per_second(), 64, 1e-3);
}

TEST(Numbers, AreWrittenForPeople) {
  EXPECT_EQ(grouped(0), "0");
  EXPECT_EQ(grouped(999), "999");
  EXPECT_EQ(grouped(1000), "1,000");
  EXPECT_EQ(grouped(-1234567), "-1,234,567");
  EXPECT_EQ(short_number(1e-3), "0.001");
  EXPECT_EQ(short_number(3e-5), "3e-05");
  EXPECT_EQ(duration_text(0), "0:00:00");
  EXPECT_EQ(duration_text(3725.2), "1:02:06");
  EXPECT_EQ(duration_text(NAN), "-:--:--");
  EXPECT_EQ(duration_text(-1), "-:--:--");
}

}  // namespace
}  // namespace capstan::cli
