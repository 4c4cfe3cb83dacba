#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/plugins/optimizers/optimizer_under_test.hpp"

namespace capstan::testing {
namespace {

using ::testing::Pointwise;
using ::testing::ThrowsMessage;

MATCHER_P(Near, tolerance, "") { return std::abs(std::get<0>(arg) - std::get<1>(arg)) <= tolerance; }

constexpr double kFp32 = 6e-7;  // an ulp or two of 4

/// The golden tables' problem: p = [1, -2, 3, -4] under a constant gradient.
struct Golden {
  Golden(std::string_view plugin, std::string_view type, const char* params)
      : optimizer(plugin, type, Json::parse(params)) {
    optimizer.add(tensor_of({1, -2, 3, -4})).grad = tensor_of({.1, .2, -.3, .4});
  }
  std::vector<double> next() {
    optimizer.update();
    return values_of(optimizer.slot(0).param);
  }
  OptimizerUnderTest optimizer;
};

TEST(Adagrad, GivesTheGoldenValues) {
  Golden golden("adagrad", "Adagrad", R"({"lr": 0.01, "weight_decay": 0.1})");
  EXPECT_THAT(golden.next(), Pointwise(Near(kFp32), std::vector{.99, -2., 2.999999994, -4.}));
  // In double precision -.3 + .1 * 3 is 5.6e-17, which the division by the root of its square blows up; in fp32 it is
  // 0.
  const auto second = golden.next();
  EXPECT_THAT((std::vector{second[0], second[1], second[3]}),
              Pointwise(Near(kFp32), std::vector{.982946676, -2., -4.}));
}

TEST(Lion, GivesTheGoldenValues) {
  Golden golden("lion", "Lion", R"({"lr": 0.01, "betas": [0.9, 0.99], "weight_decay": 0.1})");
  EXPECT_THAT(golden.next(), Pointwise(Near(kFp32), std::vector{.989, -2.008, 3.007, -4.006}));
  EXPECT_THAT(golden.next(), Pointwise(Near(kFp32), std::vector{.978011, -2.015992, 3.013993, -4.011994}));
}

TEST(Lion, TakesTheSignOfZeroAsZero) {
  OptimizerUnderTest optimizer("lion", "Lion", Json::parse(R"({"lr": 0.5})"));
  optimizer.add(tensor_of({1, 1, 1})).grad = tensor_of({0, -0.0, 1});
  optimizer.update();
  EXPECT_EQ(values_of(optimizer.slot(0).param), (std::vector{1., 1., .5}));
}

struct LambCase {
  const char* params;
  double first_ratio, second_ratio;
  std::vector<double> first, second;
};

class LambGolden : public ::testing::TestWithParam<LambCase> {};

TEST_P(LambGolden, IsReached) {
  Golden golden("lamb", "Lamb", GetParam().params);
  EXPECT_THAT(golden.next(), Pointwise(Near(kFp32), GetParam().first));
  EXPECT_NEAR(golden.optimizer.state(0, "lamb_coeff").item<double>(), GetParam().first_ratio, 1e-6);
  EXPECT_THAT(golden.next(), Pointwise(Near(kFp32), GetParam().second));
  EXPECT_NEAR(golden.optimizer.state(0, "lamb_coeff").item<double>(), GetParam().second_ratio, 1e-6);
}

INSTANTIATE_TEST_SUITE_P(Table, LambGolden,
                         ::testing::Values(LambCase{R"({"lr": 0.01, "weight_decay": 0.1})",
                                                    .9226591068,
                                                    .6771606584,
                                                    {.990481668, -2.008643036, 3.00835127, -4.008059502},
                                                    {.983552246, -2.015094563, 3.014643499, -4.014192432}},
                                           LambCase{R"({"lr": 0.01, "weight_decay": 0.1, "eps_inside_sqrt": true})",
                                                    .9228433657,
                                                    .6772262438,
                                                    {.990484348, -2.008643623, 3.008352435, -4.00806083},
                                                    {.983555933, -2.015095359, 3.01464509, -4.014194252}},
                                           LambCase{R"({"lr": 0.01, "weight_decay": 0.1, "bias_correction": false})",
                                                    .9226591068,
                                                    .6806595606,
                                                    {.96990039, -2.027331678, 3.026409035, -4.025486383},
                                                    {.940315031, -2.054876976, 3.053274311, -4.051671633}}));

TEST(Lamb, ClampsTheTrustRatio) {
  Golden high("lamb", "Lamb", R"({"max_coeff": 0.3})"), low("lamb", "Lamb", R"({"min_coeff": 5})");
  high.next(), low.next();
  EXPECT_FLOAT_EQ(high.optimizer.state(0, "lamb_coeff").item<float>(), 0.3f);
  EXPECT_FLOAT_EQ(low.optimizer.state(0, "lamb_coeff").item<float>(), 5.0f);
}

TEST(Lamb, TrustsFullyWhereWeightsOrDirectionAreZero) {
  OptimizerUnderTest optimizer("lamb", "Lamb");
  optimizer.add(tensor_of({0, 0})).grad = tensor_of({1, 1});
  optimizer.add(tensor_of({1, 1}));
  optimizer.update();
  EXPECT_EQ(optimizer.state(0, "lamb_coeff").item<double>(), 1);
  EXPECT_EQ(optimizer.state(1, "lamb_coeff").item<double>(), 1);
  EXPECT_EQ(values_of(optimizer.slot(1).param), (std::vector{1., 1.}));
}

/// Two parameters, each whole or in three uneven shards; the ratios must be those of whole parameters.
TEST(Lamb, GivesTheSameBitsInShardsAsInWholeParameters) {
  constexpr std::int64_t kCount = 30'011;
  const std::int64_t cuts[] = {0, 33, 20'001, kCount};
  const Json params = Json::parse(R"({"lr": 0.01, "weight_decay": 0.1})");
  OptimizerUnderTest whole("lamb", "Lamb", params), parts("lamb", "Lamb", params);
  for (int p = 0; p < 2; ++p) {
    const at::Tensor param = noise(kCount, 1 + p).mul_(1 + 3 * p);
    whole.add(param.clone());
    for (int i = 0; i < 3; ++i) {
      TestSlot& slot = parts.add(param.slice(0, cuts[i], cuts[i + 1]).clone());
      slot.name = "whole" + std::to_string(p);
    }
  }
  for (int t = 0; t < 5; ++t) {
    for (int p = 0; p < 2; ++p) {
      const at::Tensor grad = noise(kCount, 10 + 2 * t + p);
      whole.slot(p).grad = grad;
      for (int i = 0; i < 3; ++i) parts.slot(3 * p + i).grad = grad.slice(0, cuts[i], cuts[i + 1]).clone();
    }
    whole.update();
    parts.update();
  }
  for (int p = 0; p < 2; ++p) {
    for (int i = 0; i < 3; ++i) {
      EXPECT_TRUE(whole.slot(p).param.slice(0, cuts[i], cuts[i + 1]).equal(parts.slot(3 * p + i).param)) << p << i;
    }
  }
  EXPECT_NE(whole.totals()[0], whole.totals()[2]);
}

TEST(Lamb, MeasuresTheSquaresOfWeightsAndDirection) {
  Golden golden("lamb", "Lamb", R"({"weight_decay": 0.1, "eps": 0})");
  golden.next();
  // u = .1 g / sqrt(.001 g^2) + .1 p = sign(g) * sqrt(10) + .1 p
  double squares = 0;
  for (const auto& [p, g] : std::vector<std::pair<double, double>>{{1, 1}, {-2, 1}, {3, -1}, {-4, 1}}) {
    squares += std::pow(g * std::sqrt(10) + .1 * p, 2);
  }
  EXPECT_EQ(golden.optimizer.totals()[0], 30);
  EXPECT_NEAR(golden.optimizer.totals()[1], squares, 1e-5 * squares);
}

TEST(Lamb, ReadsSixteenBitGradientsAndScalesThem) {
  OptimizerUnderTest narrow("lamb", "Lamb"), wide("lamb", "Lamb");
  for (auto* optimizer : {&narrow, &wide}) optimizer->add(noise(3001, 1));
  narrow.slot(0).grad = noise(3001, 2).to(at::kBFloat16).mul_(256);
  wide.slot(0).grad = noise(3001, 2).to(at::kBFloat16).to(at::kFloat);
  narrow.update(1.0 / 256);
  wide.update();
  EXPECT_TRUE(narrow.slot(0).param.equal(wide.slot(0).param));
}

TEST(Lamb, RefusesWhatItDoesNotHave) {
  EXPECT_THAT([] { OptimizerUnderTest("lamb", "Lamb", Json::parse(R"({"amsgrad": true})")); },
              ThrowsMessage<std::runtime_error>("amsgrad: Lamb has no AMSGrad form; remove it or set it to false."));
  EXPECT_THAT([] { OptimizerUnderTest("lamb", "Lamb", Json::parse(R"({"min_coeff": 1, "max_coeff": 0.5})")); },
              ThrowsMessage<std::runtime_error>("min_coeff: must not exceed max_coeff."));
}

TEST(Rprop, RefusesFactorsAndSizesInTheWrongOrder) {
  for (const char* params : {R"({"etas": [1.0, 1.2]})", R"({"etas": [0.5, 1.0]})"}) {
    EXPECT_THAT([&] { OptimizerUnderTest("rprop", "Rprop", Json::parse(params)); },
                ThrowsMessage<std::runtime_error>("etas: the first must be below 1 and the second above 1."));
  }
  EXPECT_THAT([] { OptimizerUnderTest("rprop", "Rprop", Json::parse(R"({"step_sizes": [2, 1]})")); },
              ThrowsMessage<std::runtime_error>("step_sizes: the first must not exceed the second."));
}

}  // namespace
}  // namespace capstan::testing
