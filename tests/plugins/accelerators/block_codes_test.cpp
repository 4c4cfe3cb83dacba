// The kernels of CUDA, run by the CPU, against those of core.

#include "plugins/accelerators/cuda/block_codes.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "core/zero/block_quantization.hpp"

namespace capstan::accelerators {
namespace {

std::vector<float> hard_values(std::int64_t count, std::int64_t block) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal(0.0f, 3.0f);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = normal(random);
  const auto set = [&](std::int64_t nth, float value, std::int64_t elements) {
    for (std::int64_t i = nth * block; i < std::min(count, nth * block + elements); ++i) {
      values[static_cast<std::size_t>(i)] = value;
    }
  };
  set(1, 0.0f, block);
  set(2, 1e-38f, block);
  set(3, std::numeric_limits<float>::infinity(), 1);
  set(4, std::numeric_limits<float>::quiet_NaN(), 1);
  set(5, 2.5f, block / 2);
  return values;
}

template <class T>
bool same_bits(const std::vector<T>& one, const std::vector<T>& other) {
  return one.size() == other.size() && std::memcmp(one.data(), other.data(), one.size() * sizeof(T)) == 0;
}

/// NaN is one number here, whatever its sign.
std::vector<float> plain(std::vector<float> values) {
  for (float& value : values) value = std::isnan(value) ? -1e30f : value;
  return values;
}

class BlockCodesOf : public testing::TestWithParam<BlockCodes> {};

TEST_P(BlockCodesOf, HaveTheBitsOfTheCpu) {
  const BlockCodes format = GetParam();
  const BlockFormat same{format.bits, format.numel, format.block};
  const std::vector<float> values = hard_values(format.numel, format.block);
  std::vector<float> scales(static_cast<std::size_t>(same.blocks())), expected_scales = scales;
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(same.code_bytes())), expected_codes = codes;
  quantize(same, values.data(), expected_scales.data(), expected_codes.data());
  ASSERT_EQ(quantize_blocks(format, values.data(), scales.data(), codes.data(), nullptr), nullptr);
  EXPECT_TRUE(same_bits(plain(scales), plain(expected_scales)));
  EXPECT_TRUE(same_bits(codes, expected_codes));
  for (const bool add : {false, true}) {
    std::vector<float> back(values.size(), 0.1f), expected = back;
    (add ? add_dequantized : dequantize)(same, scales.data(), codes.data(), expected.data());
    ASSERT_EQ(dequantize_blocks(format, scales.data(), codes.data(), add, back.data(), nullptr), nullptr);
    EXPECT_TRUE(same_bits(plain(back), plain(expected))) << add;
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, BlockCodesOf,
                         testing::Values(BlockCodes{8000, 1000, 8}, BlockCodes{1, 8, 8}, BlockCodes{4097, 64, 8},
                                         BlockCodes{8000, 32, 4}, BlockCodes{1001, 96, 4}, BlockCodes{31, 32, 4}));

TEST(BlockCodesOfNothing, AreNothing) {
  EXPECT_EQ(quantize_blocks({0, 64, 8}, nullptr, nullptr, nullptr, nullptr), nullptr);
  EXPECT_EQ(dequantize_blocks({0, 64, 8}, nullptr, nullptr, false, nullptr, nullptr), nullptr);
}

}  // namespace
}  // namespace capstan::accelerators
