#include "core/zero/block_quantization.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace capstan {
namespace {

/// The number of blocks, step by step as ZeRO++'s text has it.
std::int64_t blocks_by_search(std::int64_t n) {
  std::int64_t g = (n + 7999) / 8000;
  while (n % (8 * g) != 0 && g < n) ++g;
  while (n % (16 * g) == 0 && n / g > 8000) g *= 2;
  return g;
}

TEST(BlockFormat, OfWeightsIsWhatTheSearchFinds) {
  for (std::int64_t n = 8; n <= 150'000; n += 8) {
    const BlockFormat format = weight_format(n);
    ASSERT_EQ(n / format.block, blocks_by_search(n)) << n;
    ASSERT_EQ(n % format.block, 0) << n;
    ASSERT_LT(format.block, 16'000) << n;
  }
  for (const std::int64_t n : {3 * 768 * 768, 50'257 * 1024, 32'768 * 7, 8 * 7'919}) {
    EXPECT_EQ(n / weight_format(n).block, blocks_by_search(n)) << n;
  }
}

TEST(BlockFormat, LeavesOddSizesAsTheyAre) {
  for (const std::int64_t n : {0, 1, 7, 9, 12, 50'257}) EXPECT_EQ(weight_format(n).block, 0) << n;
}

TEST(BlockFormat, HuntsForALargePrimeInNoTime) {
  EXPECT_EQ(weight_format(8 * std::int64_t{1'000'000'007}).block, 8);  // nothing else divides it
}

TEST(BlockFormat, OfGradientsHasAsManyBlocksAsTheLongerSide) {
  EXPECT_EQ(gradient_block({768, 3072}, 4), 768);
  EXPECT_EQ(gradient_block({3072, 768}, 4), 768);
  EXPECT_EQ(gradient_block({4, 64}, 128), 32);            // 2 elements a block, rounded up to a vector
  EXPECT_EQ(gradient_block({2, 2, 1'000'000}, 2), 8192);  // at most
  EXPECT_EQ(gradient_block({100}, 2), 0);
  EXPECT_EQ(gradient_block({}, 2), 0);
}

TEST(BlockFormat, RangesMakeUpEveryPart) {
  const std::vector<std::vector<std::int64_t>> shapes = {{300, 400}, {400}, {7}, {}, {9, 5}, {1000, 100}};
  std::vector<Partition::Parameter> parameters;
  for (const auto& shape : shapes) {
    std::int64_t numel = 1;
    for (const std::int64_t size : shape) numel *= size;
    parameters.push_back({numel});
  }
  for (int ranks = 1; ranks <= 4; ++ranks) {
    const Partition partition(parameters, 150'000, ranks);
    for (std::size_t b = 0; b < partition.buckets().size(); ++b) {
      const Bucket& bucket = partition.buckets()[b];
      const auto of_rank = gradient_ranges(partition, b, shapes);
      for (std::size_t r = 0; r < of_rank.size(); ++r) {
        std::int64_t numel = 0;
        for (const GradientRange& range : of_rank[r]) numel += range.numel;
        EXPECT_EQ(numel, bucket.rank_first[r + 1] - bucket.rank_first[r]) << ranks << " " << b << " " << r;
      }
    }
  }
}

struct Quantized {
  std::vector<float> scales;
  std::vector<std::uint8_t> codes;
  std::vector<float> values;
};

Quantized there_and_back(const BlockFormat& format, const std::vector<float>& values) {
  Quantized result{std::vector<float>(static_cast<std::size_t>(format.blocks())),
                   std::vector<std::uint8_t>(static_cast<std::size_t>(format.code_bytes())),
                   std::vector<float>(values.size())};
  quantize(format, values.data(), result.scales.data(), result.codes.data());
  dequantize(format, result.scales.data(), result.codes.data(), result.values.data());
  return result;
}

std::vector<float> random_values(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, 1.0f);
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i)
    values[i] = normal(random) * std::pow(10.0f, static_cast<float>(i / 500 % 9) - 4);
  return values;
}

int code_at(const BlockFormat& format, const std::vector<std::uint8_t>& codes, std::size_t i) {
  if (format.bits == 8) return static_cast<std::int8_t>(codes[i]);
  const int nibble = i % 2 == 0 ? codes[i / 2] & 15 : codes[i / 2] >> 4;
  return nibble < 8 ? nibble : nibble - 16;
}

/// Holds codes, scales and values against the formulas, in double precision.
void expect_formulas(const BlockFormat& format, const std::vector<float>& values) {
  const Quantized quantized = there_and_back(format, values);
  const double half = std::pow(2.0, format.bits - 1);
  for (std::size_t first = 0; first < values.size(); first += static_cast<std::size_t>(format.block)) {
    const std::size_t end = std::min(values.size(), first + static_cast<std::size_t>(format.block));
    double a = 0;
    for (std::size_t i = first; i < end; ++i) a = std::max(a, std::abs(static_cast<double>(values[i])));
    const double scale = a / half;
    ASSERT_NEAR(quantized.scales[first / static_cast<std::size_t>(format.block)], scale, 1e-6 * scale);
    for (std::size_t i = first; i < end; ++i) {
      const double steps = static_cast<double>(values[i]) / scale;
      const double expected = std::clamp(std::nearbyint(steps), -half, half - 1);
      if (std::abs(std::abs(steps - std::floor(steps)) - 0.5) > 1e-4) {
        ASSERT_EQ(code_at(format, quantized.codes, i), expected) << i;
      }
      const double bound = scale * (steps > half - 0.5 ? 1.0 : 0.5);
      ASSERT_LE(std::abs(static_cast<double>(quantized.values[i]) - values[i]), bound * (1 + 1e-4)) << i;
    }
  }
}

TEST(BlockQuantization, FollowsTheFormulasInEightBits) {
  for (const std::int64_t n : {8, 16, 104, 8000, 32'768, 50'000}) {
    expect_formulas(weight_format(n), random_values(static_cast<std::size_t>(n), static_cast<unsigned>(n)));
  }
}

TEST(BlockQuantization, FollowsTheFormulasInFourBits) {
  for (const std::int64_t n : {1, 2, 31, 32, 33, 1000, 20'001}) {
    for (const std::int64_t block : {32, 96, 1024}) {
      expect_formulas({4, n, block}, random_values(static_cast<std::size_t>(n), static_cast<unsigned>(n)));
    }
  }
}

TEST(BlockQuantization, RoundsHalvesToEven) {
  // a = 8 and 4 bits: the scale is 1.
  std::vector<float> values(32, 0.0f);
  const std::vector<float> halves = {-8, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -2.5f, 6.5f, 7.5f};
  std::copy(halves.begin(), halves.end(), values.begin());
  const Quantized quantized = there_and_back({4, 32, 32}, values);
  const std::vector<float> expected = {-8, 0, 2, 2, 0, -2, -2, 6, 7};  // 7.5 goes to 8, which is clipped
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), quantized.values.begin()));
}

TEST(BlockQuantization, TheLargestPositiveElementIsClipped) {
  std::vector<float> values(8, 0.0f);
  values[3] = 128.0f;
  EXPECT_EQ(there_and_back(weight_format(8), values).values[3], 127.0f);
  values[3] = -128.0f;
  EXPECT_EQ(there_and_back(weight_format(8), values).values[3], -128.0f);
}

TEST(BlockQuantization, ZerosAndTheSmallestNumbersBecomeZeros) {
  for (const float value : {0.0f, 1e-40f, -1e-37f}) {
    const Quantized quantized = there_and_back(weight_format(64), std::vector<float>(64, value));
    EXPECT_EQ(quantized.values, std::vector<float>(64, 0.0f)) << value;
  }
}

TEST(BlockQuantization, ABlockWithAnOverflowBecomesNaNAndItsNeighbourDoesNot) {
  for (const float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN()}) {
    for (const std::size_t at : {0, 17, 31}) {
      std::vector<float> values(64, 1.0f);
      values[at] = bad;
      const Quantized quantized = there_and_back({4, 64, 32}, values);
      for (std::size_t i = 0; i < 32; ++i) EXPECT_TRUE(std::isnan(quantized.values[i])) << bad << " " << i;
      for (std::size_t i = 32; i < 64; ++i) EXPECT_FLOAT_EQ(quantized.values[i], 0.875f) << bad;
    }
  }
}

TEST(BlockQuantization, AddsWhatItWouldGive) {
  const std::vector<float> values = random_values(1001, 5);
  const BlockFormat format{4, 1001, 96};
  const Quantized quantized = there_and_back(format, values);
  std::vector<float> sum(values.size(), 2.0f);
  add_dequantized(format, quantized.scales.data(), quantized.codes.data(), sum.data());
  for (std::size_t i = 0; i < sum.size(); ++i) EXPECT_EQ(sum[i], 2.0f + quantized.values[i]);
}

}  // namespace
}  // namespace capstan
