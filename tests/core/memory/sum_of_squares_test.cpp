#include "core/memory/sum_of_squares.hpp"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/errors.hpp"

namespace capstan {
namespace {

/// Straight from the definition, in extended precision.
long double brute_force(const at::Tensor& tensor) {
  const at::Tensor wide = tensor.to(at::kDouble).contiguous();
  const auto* values = static_cast<const double*>(wide.const_data_ptr());
  long double sum = 0;
  for (std::int64_t i = 0; i < wide.numel(); ++i) sum += static_cast<long double>(values[i]) * values[i];
  return sum;
}

class SumOfSquaresOf : public testing::TestWithParam<at::ScalarType> {};

TEST_P(SumOfSquaresOf, EqualsTheDefinitionForEveryLength) {
  for (const std::int64_t length : {0, 1, 7, 8, 9, 8191, 8192, 8193, 100'003}) {
    const at::Tensor tensor = at::randn({length}).to(GetParam());
    const double expected = static_cast<double>(brute_force(tensor));
    EXPECT_NEAR(sum_of_squares({&tensor}), expected, 1e-13 * expected) << length;
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, SumOfSquaresOf, testing::Values(at::kFloat, at::kBFloat16, at::kHalf));

TEST(SumOfSquares, DoesNotDependOnTheNumberOfThreads) {
  const at::Tensor large = at::randn({1'000'003}), small = at::randn({17});
  at::set_num_threads(1);
  const double one = sum_of_squares({&large, &small});
  at::set_num_threads(2);
  EXPECT_EQ(sum_of_squares({&large, &small}), one);
}

TEST(SumOfSquares, IsNotFiniteExactlyWhenAnElementIsNot) {
  const at::Tensor huge = at::empty({1000}).fill_(std::numeric_limits<float>::max());
  EXPECT_TRUE(std::isfinite(sum_of_squares({&huge})));
  for (const float bad : {INFINITY, -INFINITY, NAN}) {
    for (const std::int64_t place : {0, 500, 999}) {
      at::Tensor tensor = huge.clone();
      static_cast<float*>(tensor.mutable_data_ptr())[place] = bad;
      EXPECT_FALSE(std::isfinite(sum_of_squares({&tensor})));
    }
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
