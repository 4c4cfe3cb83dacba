#include "core/zero/code_operators.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

// The operators' kernels for the CPU against the ones that any device gets, which share no line with them.

namespace capstan {
namespace {

bool same_bits(const at::Tensor& one, const at::Tensor& other) {
  return at::equal(one.view(at::kByte), other.view(at::kByte));
}

/// Values of all magnitudes; some blocks hold only zeros, tiny numbers, or what is not finite.
at::Tensor hard_values(std::int64_t numel, std::int64_t block) {
  at::Tensor values = at::randn({numel}) * at::pow(10, at::randint(-4, 5, {numel}));
  const auto set = [&](std::int64_t nth, double value, std::int64_t count) {
    const std::int64_t first = nth * block;
    if (first < numel) values.narrow(0, first, std::min(count, numel - first)).fill_(value);
  };
  set(1, 0, block);
  set(2, 1e-38, block);
  set(3, std::numeric_limits<double>::infinity(), 1);
  set(4, std::numeric_limits<double>::quiet_NaN(), 1);
  set(5, 2.5, block / 2);  // ties
  return values;
}

struct Blocks {
  int bits;
  std::int64_t numel, block;
};

class BlockOperators : public testing::TestWithParam<Blocks> {};

TEST_P(BlockOperators, HaveTheBitsOfTheCpuEverywhere) {
  const auto [bits, numel, block] = GetParam();
  const BlockFormat format{bits, numel, block};
  const at::Tensor values = hard_values(numel, block);
  const auto scales = [&] { return at::zeros({format.blocks()}); };
  const auto codes = [&] { return at::zeros({format.code_bytes()}, at::kByte); };
  const at::Tensor of_cpu[] = {scales(), codes()}, of_any[] = {scales(), codes()};
  quantize_blocks(format, values, of_cpu[0], of_cpu[1]);
  by_operators::quantize_blocks(values, bits, block, of_any[0], of_any[1]);
  EXPECT_TRUE(same_bits(of_any[0].isnan(), of_cpu[0].isnan()));
  EXPECT_TRUE(same_bits(of_any[0].nan_to_num(-1), of_cpu[0].nan_to_num(-1)));
  EXPECT_TRUE(same_bits(of_any[1], of_cpu[1]));
  for (const bool add : {false, true}) {
    const at::Tensor back_on_cpu = at::full({numel}, 0.1, at::kFloat), back = back_on_cpu.clone();
    dequantize_blocks(format, of_cpu[0], of_cpu[1], add, back_on_cpu);
    by_operators::dequantize_blocks(of_cpu[0], of_cpu[1], bits, block, add, back);
    EXPECT_TRUE(same_bits(back.isnan(), back_on_cpu.isnan()));
    EXPECT_TRUE(same_bits(back.nan_to_num(-1), back_on_cpu.nan_to_num(-1))) << add;
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, BlockOperators,
                         testing::Values(Blocks{8, 8000, 1000}, Blocks{8, 1, 8}, Blocks{8, 4097, 64},
                                         Blocks{4, 8000, 32}, Blocks{4, 1001, 96}, Blocks{4, 31, 32}));

struct Coded {
  std::int64_t group_size, offset, numel;
  int bits;
  bool zero_points;
  at::ScalarType type;
};

class PartOperators : public testing::TestWithParam<Coded> {};

TEST_P(PartOperators, HaveTheBitsOfTheCpuEverywhere) {
  const Coded& one = GetParam();
  const CodeFormat format{one.group_size, one.bits, one.zero_points};
  const Range part{one.offset, one.numel};
  const std::int64_t groups = format.groups_in(part);
  PartScales scales{format, at::rand({groups}) + 0.01, at::randint(-100, 100, {groups}, at::kInt)};
  if (groups > 1) scales.scales.select(0, 1).zero_();
  std::optional<at::Tensor> zero_points;
  if (one.zero_points) zero_points = scales.zero_points;
  at::Tensor values = (at::randn({one.numel}) * 5).to(one.type);
  if (one.numel > 3) values.select(0, 3).fill_(std::numeric_limits<double>::infinity());
  const at::Tensor bytes = encode_part(scales, part, values);
  EXPECT_TRUE(at::equal(
      by_operators::encode_part(values, scales.scales, zero_points, one.offset, one.group_size, one.bits), bytes));
  const at::Tensor on_cpu = at::empty_like(values), anywhere = at::empty_like(values);
  decode_part(format, part, bytes, on_cpu);
  by_operators::decode_part(bytes, one.offset, one.group_size, one.bits, one.zero_points, anywhere);
  EXPECT_TRUE(at::equal(anywhere, on_cpu));
}

INSTANTIATE_TEST_SUITE_P(
    Parts, PartOperators,
    testing::Values(Coded{64, 0, 4096, 8, false, at::kFloat}, Coded{100, 4096, 9001, 4, true, at::kFloat},
                    Coded{100, 150, 30, 2, false, at::kBFloat16}, Coded{70'000, 65'536, 32'768, 8, false, at::kHalf},
                    Coded{48, 24, 481, 1, false, at::kFloat}, Coded{96, 96, 0, 3, true, at::kFloat}));

TEST(CodeOperators, AskForNoScalesOfAPartWithoutElements) {
  const PartScales none{{64, 8, true}, {}, {}};
  EXPECT_EQ(encode_part(none, {128, 0}, at::zeros({0})).numel(), 0);
}

TEST(CodeOperators, RefuseArgumentsThatDoNotFit) {
  const auto words = [](const std::function<void()>& call) {
    try {
      call();
    } catch (const c10::Error& error) {
      return std::string(error.what_without_backtrace());
    }
    return std::string("nothing");
  };
  const at::Tensor values = at::randn({64}), scales = at::zeros({2}), codes = at::zeros({64}, at::kByte);
  EXPECT_EQ(words([&] { quantize_blocks({5, 64, 32}, values, scales, codes); }), "bits: 8 or 4, got 5.");
  EXPECT_EQ(words([&] {
              quantize_blocks({4, 64, 31}, values, scales, codes);
            }),
            "block: elements, an even number for 4 bits, got 31.");
  EXPECT_EQ(words([&] {
              quantize_blocks({8, 64, 16}, values, scales, codes);
            }),
            "scales: Float [4], contiguous, expected, found CPUFloatType [2].");
  EXPECT_EQ(words([&] {
              dequantize_blocks({8, 64, 32}, scales, codes.to(at::kInt), false, values);
            }),
            "codes: Byte [64], contiguous, expected, found CPUIntType [64].");
  EXPECT_EQ(
      words([&] {
        dequantize_blocks({8, 32, 32}, scales.slice(0, 0, 1), codes.slice(0, 0, 32), false, values.slice(0, 0, 64, 2));
      }),
      "values: Float [32], contiguous, expected, found CPUFloatType [32].");
  const CodeFormat format{64, 9, false};
  EXPECT_EQ(words([&] { decode_part(format, {0, 64}, codes, values); }), "bits: 1 to 8, got 9.");
  EXPECT_EQ(words([&] {
              decode_part({64, 8, false}, {0, 64}, codes, values);
            }),
            "bytes: Byte [68], contiguous, expected, found CPUByteType [64].");
  EXPECT_EQ(words([&] {
              encode_part({{0, 8, false}, scales, {}}, {0, 64}, values);
            }),
            "offset and group_size: elements, got 0 and 0.");
}

}  // namespace
}  // namespace capstan
