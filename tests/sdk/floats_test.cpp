#include "capstan/sdk/floats.hpp"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace capstan::sdk {
namespace {

TEST(Floats, ReadEveryBFloat16AndFloat16AsLibTorchDoes) {
  for (std::uint32_t bits = 0; bits <= 0xffffu; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const auto brain = static_cast<float>(c10::BFloat16(half, c10::BFloat16::from_bits()));
    const auto ieee = static_cast<float>(c10::Half(half, c10::Half::from_bits()));
    EXPECT_EQ(std::bit_cast<std::uint32_t>(from_bfloat16(half)), std::bit_cast<std::uint32_t>(brain)) << bits;
    if (std::isnan(ieee)) {
      EXPECT_TRUE(std::isnan(from_float16(half))) << bits;
    } else {
      EXPECT_EQ(std::bit_cast<std::uint32_t>(from_float16(half)), std::bit_cast<std::uint32_t>(ieee)) << bits;
    }
  }
}

TEST(Floats, RoundToTheNearestBFloat16AsLibTorchDoes) {
  std::mt19937 random(3);
  for (int i = 0; i < 200'000; ++i) {
    const auto value = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(from_bfloat16(to_bfloat16(value))));
    } else {
      EXPECT_EQ(to_bfloat16(value), c10::BFloat16(value).x) << value;
    }
  }
}

}  // namespace
}  // namespace capstan::sdk
