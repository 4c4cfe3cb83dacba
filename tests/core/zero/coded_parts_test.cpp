#include "core/zero/coded_parts.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace capstan {
namespace {

constexpr std::int64_t kBlock = Partition::kBlock;

struct Case {
  std::int64_t group_size;
  Range part;
  int bits;
  bool zero_points;
  at::ScalarType type;
};

TEST(CodedParts, GiveTheVeryValuesInFewBytes) {
  for (const Case& one : {
           Case{64, {0, 3 * kBlock}, 8, false, at::kFloat},
           Case{64, {kBlock, kBlock + 64}, 4, false, at::kFloat},
           Case{100, {kBlock, 2 * kBlock + 7}, 2, false, at::kBFloat16},
           Case{70'000, {2 * kBlock, kBlock}, 8, false, at::kBFloat16},
           Case{48, {0, 4801}, 1, false, at::kHalf},
           Case{48, {0, 481}, 5, true, at::kFloat},
           Case{96, {kBlock, kBlock}, 3, true, at::kFloat},
           Case{96, {kBlock, 0}, 3, true, at::kFloat},
       }) {
    const CodeFormat format{one.group_size, one.bits, one.zero_points};
    ASSERT_TRUE(format.fits(one.type));
    const std::int64_t groups = format.groups_in(one.part), first = one.part.offset / one.group_size;
    PartScales scales{format, at::rand({groups}) + 0.01, at::randint(-1000, 1000, {groups}, at::kInt)};
    if (groups > 1) scales.scales.select(0, 1).zero_();  // a group of zeros
    const std::int64_t most = std::int64_t{1} << (one.bits - 1);
    const at::Tensor codes = one.bits == 1 ? at::randint(-1, 2, {one.part.numel}, at::kInt)
                                           : at::randint(-most, most, {one.part.numel}, at::kInt);
    at::Tensor values = at::empty({one.part.numel}, at::kFloat);
    for (std::int64_t i = 0; i < one.part.numel; ++i) {
      const std::int64_t group = (one.part.offset + i) / one.group_size - first;
      const int zero = one.zero_points ? scales.zero_points.const_data_ptr<int>()[group] : 0;
      values.mutable_data_ptr<float>()[i] =
          static_cast<float>(codes.const_data_ptr<int>()[i] - zero) * scales.scales.const_data_ptr<float>()[group];
    }
    values = values.to(one.type);
    const at::Tensor bytes = encode_part(scales, one.part, values);
    EXPECT_EQ(bytes.numel(), format.bytes(one.part));
    EXPECT_LE(bytes.numel(), groups * 8 + one.part.numel * format.width() / 8 + 1);
    at::Tensor again = at::full({one.part.numel}, -1, values.options());
    decode_part(format, one.part, bytes, again);
    EXPECT_TRUE(at::equal(again, values)) << one.group_size << " " << one.bits;
  }
}

TEST(CodedParts, OfSixteenBitsDoNotTellCodesWithZeroPoints) {
  EXPECT_FALSE((CodeFormat{64, 8, true}.fits(at::kBFloat16)));
  EXPECT_TRUE((CodeFormat{64, 8, true}.fits(at::kFloat)));
}

}  // namespace
}  // namespace capstan
