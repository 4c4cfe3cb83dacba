#include "core/data/batch_order.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>

namespace capstan {
namespace {

using ::testing::ThrowsMessage;

std::vector<std::int64_t> pass(const BatchOrder& order, std::int64_t samples, std::int64_t number) {
  std::vector<std::int64_t> out;
  for (std::int64_t i = 0; i < samples; ++i) out.push_back(order.sample(number * samples + i));
  return out;
}

TEST(BatchOrder, EveryPassIsAPermutation) {
  for (std::int64_t samples : {1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 63, 64, 65, 255, 256, 257, 1000, 1854, 65536, 65537}) {
    const BatchOrder order(samples, 42, true);
    for (std::int64_t number : {0, 1, 2, 1'000'000}) {
      auto seen = pass(order, samples, number);
      std::sort(seen.begin(), seen.end());
      for (std::int64_t i = 0; i < samples; ++i) {
        ASSERT_EQ(seen[static_cast<std::size_t>(i)], i) << samples << " samples, pass " << number;
      }
    }
  }
}

TEST(BatchOrder, PassesAndSeedsDiffer) {
  const BatchOrder order(1000, 1, true), other_seed(1000, 2, true);

  EXPECT_NE(pass(order, 1000, 0), pass(order, 1000, 1));
  EXPECT_NE(pass(order, 1000, 0), pass(other_seed, 1000, 0));
  EXPECT_NE(pass(order, 1000, 1), pass(other_seed, 1000, 0)) << "seed and pass must not add up to the same key";
}

TEST(BatchOrder, TheOrderIsAFunctionOfPositionAndSeed) {
  const BatchOrder first(777, 9, true), second(777, 9, true);

  for (std::int64_t n = 5000; n >= 0; --n) ASSERT_EQ(first.sample(n), second.sample(n));
}

// Where value v stands, and which value follows which, must look even: chi-squared over a 16 by 16 table of (place,
// value) and of (value, next value) has mean 255 and standard deviation 22.6 for a random order.
TEST(BatchOrder, ShufflesEvenly) {
  constexpr std::int64_t kSamples = 4096, kPasses = 16;
  const BatchOrder order(kSamples, 3, true);
  std::vector<double> places(256), neighbours(256);
  for (std::int64_t number = 0; number < kPasses; ++number) {
    const auto values = pass(order, kSamples, number);
    for (std::size_t i = 0; i < values.size(); ++i) {
      ++places[i / 256 * 16 + static_cast<std::size_t>(values[i]) / 256];
      if (i > 0)
        ++neighbours[static_cast<std::size_t>(values[i - 1]) / 256 * 16 + static_cast<std::size_t>(values[i]) / 256];
    }
  }
  const auto chi_squared = [](const std::vector<double>& counts) {
    const double expected = std::accumulate(counts.begin(), counts.end(), 0.0) / 256;
    double sum = 0;
    for (double count : counts) sum += (count - expected) * (count - expected) / expected;
    return sum;
  };

  EXPECT_LT(chi_squared(places), 255 + 6 * 22.6);
  EXPECT_LT(chi_squared(neighbours), 255 + 6 * 22.6);
}

TEST(BatchOrder, WithoutShufflingThePositionWrapsAround) {
  const BatchOrder order(5, 123, false);

  EXPECT_EQ(order.sample(0), 0);
  EXPECT_EQ(order.sample(4), 4);
  EXPECT_EQ(order.sample(5), 0);
  EXPECT_EQ(order.sample(std::int64_t{5} * 1'000'000'000'000 + 3), 3);
}

TEST(BatchOrder, HugeDataNeedsNoTable) {
  const std::int64_t samples = std::int64_t{1} << 61;
  const BatchOrder order(samples, 7, true);

  for (std::int64_t n : {std::int64_t{0}, samples - 1, samples, samples + 1}) {
    EXPECT_GE(order.sample(n), 0);
    EXPECT_LT(order.sample(n), samples);
  }
}

TEST(BatchOrder, NoSamplesIsAnErrorOfTheCaller) {
  EXPECT_THAT([] { BatchOrder(0, 1, true); },
              ThrowsMessage<std::invalid_argument>("BatchOrder: there must be at least one sample"));
}

TEST(BatchOrder, RefusesANegativeNumberWhoseWalkWouldNotEnd) {
  for (const bool shuffle : {true, false}) {
    EXPECT_THAT([&] { BatchOrder(100, 1, shuffle).sample(-5); },
                ThrowsMessage<std::invalid_argument>("BatchOrder: there is no sample -5"));
  }
}

}  // namespace
}  // namespace capstan
