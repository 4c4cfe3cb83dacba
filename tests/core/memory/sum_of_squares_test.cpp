#include "core/memory/sum_of_squares.hpp"

#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/randn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/errors.hpp"

namespace capstan {
namespace {

/// Straight from the definition, in extended precision.
double brute_force(const at::Tensor& tensor) {
  const at::Tensor wide = tensor.to(at::kDouble).contiguous();
  const auto* values = static_cast<const double*>(wide.const_data_ptr());
  long double sum = 0;
  for (std::int64_t i = 0; i < wide.numel(); ++i) sum += static_cast<long double>(values[i]) * values[i];
  return static_cast<double>(sum);
}

class SumOfSquaresOf : public testing::TestWithParam<at::ScalarType> {};

TEST_P(SumOfSquaresOf, EqualsTheDefinitionForEveryLength) {
  for (const std::int64_t length : {0, 1, 7, 8, 9, 4095, 4096, 4097, 32'768, 32'769, 300'003}) {
    const at::Tensor tensor = at::randn({length}).to(GetParam());
    const double expected = brute_force(tensor);
    const SumOfSquares sum = sum_of_squares({&tensor});
    EXPECT_NEAR(sum.exact, expected, 1e-13 * expected) << length;
    EXPECT_NEAR(sum.rounded, expected, 2e-5 * expected) << length;
  }
}

TEST_P(SumOfSquaresOf, GivesTheSameSumsByOperatorsAsDevicesHaveThem) {
  const at::Tensor none = at::empty({0}).to(GetParam()), scalar = at::randn({}).to(GetParam());
  const at::Tensor small = at::randn({9}).to(GetParam()), large = at::randn({7'000'003}).to(GetParam());
  const auto here = sums_of_squares({&none, &scalar, &small, &large});
  const at::Tensor device = sums_by_operators({none, scalar, small, large}, kSquareBlock);
  ASSERT_EQ(device.sizes(), (at::IntArrayRef{static_cast<std::int64_t>(here.size()), 2}));
  const double* number = device.const_data_ptr<double>();
  for (std::size_t i = 0; i < here.size(); ++i, number += 2) {
    EXPECT_NEAR(number[0], here[i].exact, 1e-13 * here[i].exact) << i;
    EXPECT_EQ(number[1], number[0]) << i;
  }
  const double sum = sum_of_squares({&none, &scalar, &small, &large}).exact;
  const at::Tensor of_tensors = sums_by_operators({none, scalar, small, large}, 0);
  ASSERT_EQ(of_tensors.size(0), 3);
  // On the CPU the operator adds seven million squares one after the other.
  EXPECT_NEAR(of_tensors.select(1, 0).sum().item<double>(), sum, 1e-11 * sum);
  EXPECT_EQ(sums_by_operators({none}, 0).size(0), 0);
}

TEST_P(SumOfSquaresOf, IsAnOperator) {
  const at::Tensor small = at::randn({9}).to(GetParam()), large = at::randn({3, 40'000}).to(GetParam()).t();
  const auto call = c10::Dispatcher::singleton().findSchemaOrThrow("capstan::sum_of_squares", "");
  torch::jit::Stack stack{std::vector<at::Tensor>{small, large}, 32'768};
  call.callBoxed(stack);
  const at::Tensor sums = stack.front().toTensor(), rows = large.contiguous();
  const auto expected = sums_of_squares({&small, &rows});
  ASSERT_EQ(sums.sizes(), (at::IntArrayRef{5, 2}));
  for (std::int64_t i = 0; i < 5; ++i) {
    EXPECT_EQ(sums[i][0].item<double>(), expected[static_cast<std::size_t>(i)].exact);
    EXPECT_EQ(sums[i][1].item<double>(), expected[static_cast<std::size_t>(i)].rounded);
  }
}

TEST_P(SumOfSquaresOf, RoundsAsLibTorchsNormWithinABlock) {
  for (const std::int64_t length : {1000, 16'384, 32'768}) {
    const at::Tensor tensor = at::randn({length}).to(GetParam());
    const auto theirs = at::linalg_vector_norm(tensor.to(at::kFloat)).item<double>();
    // Theirs is rounded once more, to float, and may use fused multiply-add.
    EXPECT_NEAR(std::sqrt(sum_of_squares({&tensor}).rounded), theirs, 4e-7 * theirs) << length;
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, SumOfSquaresOf, testing::Values(at::kFloat, at::kBFloat16, at::kHalf));

TEST(SumOfSquares, DoesNotDependOnTheNumberOfThreads) {
  const at::Tensor large = at::randn({1'000'003}), small = at::randn({17});
  at::set_num_threads(1);
  const SumOfSquares one = sum_of_squares({&large, &small});
  at::set_num_threads(2);
  const SumOfSquares two = sum_of_squares({&large, &small});
  EXPECT_EQ(two.exact, one.exact);
  EXPECT_EQ(two.rounded, one.rounded);
}

TEST(SumOfSquares, IsNotFiniteExactlyWhenAnElementIsNot) {
  const at::Tensor huge = at::empty({1000}).fill_(std::numeric_limits<float>::max());
  EXPECT_TRUE(std::isfinite(sum_of_squares({&huge}).exact));
  for (const float bad : {INFINITY, -INFINITY, NAN}) {
    for (const std::int64_t place : {0, 500, 999}) {
      at::Tensor tensor = huge.clone();
      static_cast<float*>(tensor.mutable_data_ptr())[place] = bad;
      const SumOfSquares sum = sum_of_squares({&tensor});
      EXPECT_FALSE(std::isfinite(sum.exact) || std::isfinite(sum.rounded));
    }
  }
}

TEST(SumOfSquares, HoldsWhatFloatSumsCannot) {
  for (const double magnitude : {1e-30, 1e-20, 1e-15, 1e15, 1e25, 1e37}) {
    const at::Tensor tensor = at::randn({1000}).mul(magnitude);
    const double expected = brute_force(tensor);
    EXPECT_NEAR(sum_of_squares({&tensor}).rounded, expected, 2e-5 * expected) << magnitude;
  }
}

TEST(SumOfSquares, RefusesOtherDtypesByName) {
  const at::Tensor doubles = at::randn({3}).to(at::kDouble);
  EXPECT_THAT(
      [&] { sum_of_squares({&doubles}); },
      testing::ThrowsMessage<RuntimeFault>("gradient norm: float32, bfloat16 or float16 expected, found Double."));
}

}  // namespace
}  // namespace capstan
