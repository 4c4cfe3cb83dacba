#include "core/precision/stochastic_rounding.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <cmath>
#include <initializer_list>
#include <limits>
#include <utility>
#include <vector>

namespace capstan {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

at::Tensor of(std::initializer_list<float> values) {
  std::vector<at::Tensor> all;
  for (const float value : values) all.push_back(at::full({1}, value));
  return at::cat(all);
}

at::Tensor rounded(const at::Tensor& values, at::ScalarType type, const RoundingNumbers& numbers) {
  at::Tensor to = at::empty(values.sizes(), type);
  round_stochastically(values, to, numbers);
  return to;
}

RoundingNumbers numbers(std::int64_t update = 7, std::int64_t first = 0, std::size_t parameter = 2) {
  return {1234, "master", update, parameter, first};
}

/// A value, and its neighbours among the numbers of a type.
struct Between {
  at::ScalarType type;
  float value;
  double lower, upper;
};

/// Of n draws with probability p, the number of those that go up is within 5 standard deviations of n p.
TEST(StochasticRounding, GoesUpWithTheProbabilityOfTheDistance) {
  const Between cases[] = {
      {at::kBFloat16, 1.0f + 0x1p-9f, 1, 1 + 0x1p-7},                         // a quarter of the way
      {at::kBFloat16, -3.1f, -3.109375, -3.09375},                            // of a negative number, "up" is towards 0
      {at::kBFloat16, 0x1p-130f + 0x1p-135f, 0x1p-130, 0x1p-130 + 0x1p-133},  // bfloat16's subnormal numbers
      {at::kHalf, 1.0f + 0x1p-13f, 1, 1 + 0x1p-10},                           //
      {at::kHalf, 0x1.8p-24f, 0x1p-24, 0x1p-23},                              // float16's subnormal numbers
      {at::kHalf, 0x1p-26f, 0, 0x1p-24},                                      // between 0 and the least of them
      {at::kHalf, -0x1.001p-14f, -(0x1p-14 + 0x1p-24), -0x1p-14}};
  constexpr std::int64_t kDraws = 1'000'000;
  for (const Between& one : cases) {
    const at::Tensor out = rounded(at::full({kDraws}, one.value), one.type, numbers()).to(at::kDouble);
    const auto up = static_cast<double>((out == one.upper).sum().item<std::int64_t>());
    const auto down = static_cast<double>((out == one.lower).sum().item<std::int64_t>());
    EXPECT_EQ(up + down, kDraws) << one.value;
    const double p = (static_cast<double>(one.value) - one.lower) / (one.upper - one.lower);
    EXPECT_NEAR(up, kDraws * p, 5 * std::sqrt(kDraws * p * (1 - p))) << one.value;
  }
}

/// The mean over values of all sizes is theirs: 5 standard deviations of a sum of errors, each of which has the
/// variance p (1 - p) of its gap, at most a quarter.
TEST(StochasticRounding, KeepsTheMean) {
  at::manual_seed(1);
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    const at::Tensor values = at::randn({2'000'000});
    const at::Tensor error = rounded(values, type, numbers()).to(at::kDouble) - values.to(at::kDouble);
    const double gap = type == at::kBFloat16 ? 0x1p-7 : 0x1p-10;
    // A gap is at most so much, and 2^-24 where float16 has no smaller ones.
    const at::Tensor most = (values.to(at::kDouble).abs() * gap).clamp_min(type == at::kHalf ? 0x1p-24 : 0);
    EXPECT_NEAR(error.sum().item<double>(), 0, 5 * std::sqrt((most * most / 4).sum().item<double>()));
    EXPECT_TRUE((error.abs() <= most).all().item<bool>());
    EXPECT_TRUE((error.abs() > 0.9 * most).any().item<bool>());
  }
}

TEST(StochasticRounding, KeepsWhatHas16BitsAndWhatIsNotFinite) {
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    const at::Tensor exact = at::cat({at::randn({5000}).to(type).to(at::kFloat),
                                      of({0.0f, -0.0f, 0x1p-14f, 0x1p-24f, -65024.0f, kInfinity, -kInfinity})});
    at::Tensor out = rounded(exact, type, numbers());
    EXPECT_TRUE(at::equal(out.view(at::kShort), exact.to(type).view(at::kShort)));
    out = rounded(at::full({100}, std::nanf("")), type, numbers());
    EXPECT_TRUE(out.to(at::kFloat).isnan().all().item<bool>());
  }
  // Beyond the largest float16 number the nearest is taken.
  EXPECT_TRUE(at::equal(rounded(of({65519.0f, 65520.0f, -1e9f}), at::kHalf, numbers()).to(at::kFloat),
                        of({65504.0f, kInfinity, -kInfinity})));
}

TEST(StochasticRounding, DependsOnTheElementAndNotOnTheCut) {
  at::manual_seed(2);
  const at::Tensor values = at::randn({100'003});
  const at::Tensor whole = rounded(values, at::kBFloat16, numbers());
  std::vector<at::Tensor> parts;
  for (const auto& [from, until] : {std::pair{0, 3}, {3, 8}, {8, 77'777}, {77'777, 100'003}}) {
    parts.push_back(rounded(values.narrow(0, from, until - from), at::kBFloat16, numbers(7, from)));
  }
  EXPECT_TRUE(at::equal(at::cat(parts), whole));
  EXPECT_TRUE(at::equal(rounded(values, at::kBFloat16, numbers()), whole));
  for (const RoundingNumbers& other :
       {numbers(8), numbers(7, 8), numbers(7, 0, 3), RoundingNumbers(1235, "master", 7, 2, 0),
        RoundingNumbers(1234, "exp_avg", 7, 2, 0)}) {
    EXPECT_FALSE(at::equal(rounded(values, at::kBFloat16, other), whole));
  }
}

TEST(StochasticRounding, GivesTheSameBitsByOperators) {
  at::manual_seed(3);
  const at::Tensor values = at::cat({at::randn({10'001}), at::randn({3000}) * 1e-6, at::randn({3000}) * 1e-40,
                                     at::randn({3000}) * 1e5, of({kInfinity, -kInfinity, 0.0f, -0.0f})});
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    for (const std::int64_t first : {0, 5, 1'000'000}) {
      const RoundingNumbers random(1234, "master", (std::int64_t{1} << 33) + 9, 4'000'000'000u, first);
      at::Tensor by_operators = at::empty(values.sizes(), type);
      round_by_operators(values, by_operators, random);
      EXPECT_TRUE(at::equal(by_operators.view(at::kShort), rounded(values, type, random).view(at::kShort))) << first;
    }
  }
}

}  // namespace
}  // namespace capstan
