#include "capstan/sdk/random.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>
#include <vector>

namespace capstan::sdk {
namespace {

using ::testing::ElementsAre;

TEST(Philox, GivesThePublishedVectors) {
  // Random123 1.14, tests/kat_vectors, philox4x32 with 10 rounds.
  EXPECT_THAT(philox({0, 0, 0, 0}, {0, 0}), ElementsAre(0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u));
  EXPECT_THAT(philox({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}),
              ElementsAre(0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu));
  EXPECT_THAT(philox({0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u}, {0xa4093822u, 0x299f31d0u}),
              ElementsAre(0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u));
}

TEST(RandomStream, GivesEachPurposeSeedPlaceAndNumberItsOwn) {
  std::set<std::uint64_t> seen;
  for (const char* purpose : {"random_ltd", "curriculum"}) {
    for (const std::uint64_t seed : {0u, 1u}) {
      const RandomStream stream(seed, purpose);
      for (const std::uint64_t major : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{1} << 32}) {
        for (std::uint32_t minor = 0; minor < 3; ++minor) {
          for (std::uint32_t number = 0; number < 3; ++number) {
            for (const std::uint64_t word : stream.words(major, minor, number)) seen.insert(word);
          }
        }
      }
    }
  }
  EXPECT_EQ(seen.size(), 2u * 2 * 3 * 3 * 3 * 2);
}

TEST(RandomStream, DrawsBelowABoundEvenly) {
  const RandomStream stream(7, "test");
  constexpr std::uint64_t kBound = 10;
  constexpr int kDraws = 100'000;
  std::map<std::uint64_t, int> counts;
  double sum = 0;
  for (int i = 0; i < kDraws; ++i) {
    ++counts[stream.below(kBound, 3, 1, static_cast<std::uint32_t>(i))];
    const double uniform = stream.uniform(4, 1, static_cast<std::uint32_t>(i));
    ASSERT_GE(uniform, 0);
    ASSERT_LT(uniform, 1);
    sum += uniform;
  }
  ASSERT_EQ(counts.size(), kBound);
  const double mean = kDraws / 10.0, four_sigma = 4 * std::sqrt(mean * 0.9);
  for (const auto& [value, count] : counts) EXPECT_NEAR(count, mean, four_sigma) << value;
  EXPECT_NEAR(sum / kDraws, 0.5, 4 / std::sqrt(12.0 * kDraws));
}

}  // namespace
}  // namespace capstan::sdk
