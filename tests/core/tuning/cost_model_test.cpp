#include "core/tuning/cost_model.hpp"

#include <gtest/gtest.h>

namespace capstan::testing {
namespace {

/// A machine of known rates, and steps of it.
constexpr CostTerms kRates = {5e-3, 2e-2, 4e-9, 1e-9, 3e-4, 1e-9};

CostTerms step(double micro, double accumulation, double bytes, double calls, bool overlaps) {
  return cost_terms({accumulation, micro * accumulation, bytes, calls, 1e6, overlaps});
}

double seconds(const CostTerms& terms) {
  double sum = 0;
  for (std::size_t i = 0; i < kCostTerms; ++i) sum += terms[i] * kRates[i];
  return sum;
}

TEST(CostModel, FindsTheRatesOfAMachine) {
  CostModel model({1e-3, 1e-2, 1e-9, 1e-9, 1e-4, 1e-9});
  for (const double micro : {1.0, 2.0, 4.0}) {
    for (const double bytes : {1e6, 1e7, 1e8}) {
      for (const bool overlaps : {false, true}) {
        const CostTerms terms = step(micro, 8 / micro, bytes, bytes / 1e5, overlaps);
        model.add(terms, seconds(terms));
      }
    }
  }
  for (const double micro : {1.0, 3.0, 8.0}) {
    const CostTerms terms = step(micro, 2, 5e7, 100, true);
    EXPECT_NEAR(model.predict(terms) / seconds(terms), 1, 0.1) << micro;
  }
}

TEST(CostModel, TakesTheScaleFromTheFirstMeasurementAndTheRestFromTheGuess) {
  CostModel model(kRates);
  const CostTerms first = step(2, 1, 1e7, 10, false), other = step(8, 1, 1e7, 10, false);
  model.add(first, 5 * seconds(first));
  EXPECT_NEAR(model.predict(other) / (5 * seconds(other)), 1, 1e-6);
}

TEST(CostModel, GivesNoRateBelowZero) {
  CostModel model(kRates);
  // More bytes in less time: no rate explains it.
  model.add(step(1, 1, 1e9, 10, false), 0.1);
  model.add(step(1, 1, 1e6, 10, false), 0.5);
  for (const double rate : model.rates()) EXPECT_GE(rate, 0);
}

TEST(CostModel, IgnoresWhatIsNoTime) {
  CostModel model(kRates);
  model.add(step(1, 1, 0, 0, false), 0);
  model.add(step(1, 1, 0, 0, false), -1);
  EXPECT_EQ(model.measured(), 0u);
}

}  // namespace
}  // namespace capstan::testing
