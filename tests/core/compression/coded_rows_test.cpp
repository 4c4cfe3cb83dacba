#include "core/compression/coded_rows.hpp"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "core/errors.hpp"

namespace capstan {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

CompressionPlan::Parameter plan(std::int64_t numel, std::int64_t groups) {
  CompressionPlan::Parameter plan;
  plan.layout = {numel, groups};
  plan.bits = 4;
  return plan;
}

/// Codes from -2^(bits-1) on, again and again.
at::Tensor some_codes(std::int64_t rows, std::int64_t columns, int bits) {
  return at::arange(rows * columns, at::kInt)
      .mul(7)
      .remainder(1 << bits)
      .sub(1 << (bits - 1))
      .to(at::kChar)
      .view({rows, columns});
}

TEST(PackedWords, HoldTheBitsOfCodesOneAfterTheOtherInEachRow) {
  for (int bits = 1; bits <= 8; ++bits) {
    const std::int64_t columns = 37;
    const at::Tensor codes = some_codes(3, columns, bits);
    const at::Tensor packed = packed_words(codes, bits);
    ASSERT_EQ(packed.size(1), static_cast<std::int64_t>(std::ceil(static_cast<double>(columns * bits) / 32))) << bits;
    for (std::int64_t row = 0; row < 3; ++row) {
      for (std::int64_t bit = 0; bit < packed.size(1) * 32; ++bit) {
        const std::int64_t column = bit / bits;
        const int unsigned_code =
            column < columns ? codes[row][column].item<int>() + (1 << (bits - 1)) : 0;  // behind the last: zeros
        const auto word = static_cast<std::uint32_t>(packed[row][bit / 32].item<std::int32_t>());
        ASSERT_EQ(word >> (bit % 32) & 1u, static_cast<std::uint32_t>(unsigned_code >> (bit % bits)) & 1u)
            << bits << " bits, row " << row << ", bit " << bit;
      }
    }
  }
}

TEST(RowGroups, AreCutsOfRowsOrWholeRowsOrAll) {
  const std::vector<std::int64_t> shape = {8, 4, 3, 1};  // rows of 12
  const auto of = [&](std::int64_t groups) { return row_groups("w", shape, plan(96, groups)); };
  EXPECT_EQ(of(32).per_row, 4);
  EXPECT_EQ(of(32).size(), 3);
  EXPECT_EQ(of(8).per_row, 1);
  EXPECT_EQ(of(2).per_row, 1);
  EXPECT_EQ(of(2).group, 48);
  EXPECT_FALSE(of(2).whole);
  EXPECT_TRUE(of(1).whole);
  EXPECT_EQ(of(8).rows, 8);
  EXPECT_EQ(of(8).columns, 12);
  EXPECT_THAT([&] { of(3); },
              ThrowsMessage<RuntimeFault>("parameter 'w': its 3 groups of 32 elements end within its rows of 12, and "
                                          "no format holds such groups. What fits: as many groups as rows, 8, a "
                                          "multiple of them that divides each row, or 1."));
  // 12 = 6 x 2 is fine, 24 groups of 4 as well; 12 groups of 8 end at 8 and 16.
  EXPECT_THAT([&] { of(12); }, ThrowsMessage<RuntimeFault>(HasSubstr("its 12 groups of 8 elements")));
}

TEST(CodedRows, GiveRowsOfOneGroupItsScale) {
  const auto parameter = plan(12, 2);
  const RowGroups groups = row_groups("w", {4, 3}, parameter);
  WeightCodes codes{
      parameter.layout, 4, true, at::arange(12, at::kChar), at::tensor({0.5f, 2.0f}), at::tensor({1, -1}, at::kInt)};
  const CodedRows rows = coded_rows(groups, codes);
  EXPECT_TRUE(at::equal(rows.scales.view({-1}), at::tensor({0.5f, 0.5f, 2.0f, 2.0f})));
  const at::Tensor expected =
      at::tensor({-0.5f, 0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 14.0f, 16.0f, 18.0f, 20.0f, 22.0f, 24.0f}).view({4, 3});
  EXPECT_TRUE(at::equal(rows.values(), expected));
  EXPECT_TRUE(at::equal(rows.rows(1, 2).values(), expected.narrow(0, 1, 2)));
}

TEST(GgufBlocks, HoldAScaleAndTheCodesAsGgmlLaysThemOut) {
  // Q4_0: byte j is code j + 8, and code j + 16 + 8 above it. 0.5 is 0x3800 in float16, 3 is 0x4200.
  CodedRows rows{4, false, some_codes(1, 64, 4), at::tensor({0.5f, 3.0f}).view({1, 2}), at::zeros({1, 2}, at::kInt)};
  const at::Tensor four = gguf_blocks(rows);
  ASSERT_EQ(four.numel(), 2 * 18);
  EXPECT_EQ(four[0].item<int>(), 0x00);
  EXPECT_EQ(four[1].item<int>(), 0x38);
  EXPECT_EQ(four[18 + 1].item<int>(), 0x42);
  for (int j = 0; j < 16; ++j) {
    const int low = rows.codes[0][j].item<int>() + 8, high = rows.codes[0][j + 16].item<int>() + 8;
    EXPECT_EQ(four[2 + j].item<int>(), low | high << 4);
  }
  rows = {8, true, some_codes(2, 32, 8), at::full({2, 1}, 3.0f), at::zeros({2, 1}, at::kInt)};
  const at::Tensor eight = gguf_blocks(rows);
  ASSERT_EQ(eight.numel(), 2 * 34);
  EXPECT_TRUE(at::equal(eight.narrow(0, 36, 32).view(at::kChar), rows.codes[1]));
}

TEST(ChangeInFloat16, IsThatOfTheScaleThatChangesMost) {
  EXPECT_EQ(change_in_float16(at::tensor({0.5f, 0.0f, -3.0f})), 0);
  // 1 + 2^-12 lies a quarter of a step above 1.
  EXPECT_NEAR(change_in_float16(at::tensor({0.5f, 1.0f + 0x1p-12f})), 0x1p-12, 0x1p-23);
  EXPECT_TRUE(std::isinf(change_in_float16(at::tensor({1e6f}))));
}

}  // namespace
}  // namespace capstan
