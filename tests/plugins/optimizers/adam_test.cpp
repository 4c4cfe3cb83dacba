#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/plugins/optimizers/optimizer_under_test.hpp"

namespace capstan::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pointwise;
using ::testing::ThrowsMessage;

/// p = [1, -2, 3, -4] with the constant gradient of the golden tables, after `updates` updates.
std::vector<double> golden_run(std::string_view type, const char* params, int updates) {
  OptimizerUnderTest optimizer("adam", type, Json::parse(params));
  optimizer.add(tensor_of({1, -2, 3, -4})).grad = tensor_of({.1, .2, -.3, .4});
  for (int i = 0; i < updates; ++i) optimizer.update();
  return values_of(optimizer.slot(0).param);
}

MATCHER_P(Near, tolerance, "") { return std::abs(std::get<0>(arg) - std::get<1>(arg)) <= tolerance; }

constexpr double kFp32 = 6e-7;  // an ulp or two of 4

TEST(Adam, GivesTheGoldenValuesWithDecoupledDecay) {
  const char* params = R"({"lr": 0.01, "weight_decay": 0.1})";
  for (const char* type : {"Adam", "AdamW"}) {
    EXPECT_THAT(golden_run(type, params, 1),
                Pointwise(Near(kFp32), std::vector{.989000001, -2.007999999, 3.007, -4.006}));
    EXPECT_THAT(golden_run(type, params, 2),
                Pointwise(Near(kFp32), std::vector{.978011002, -2.015991999, 3.013992999, -4.011994}));
  }
}

TEST(Adam, GivesTheGoldenValuesWithoutBiasCorrection) {
  const char* params = R"({"lr": 0.01, "weight_decay": 0.1, "bias_correction": false})";
  EXPECT_THAT(golden_run("Adam", params, 1),
              Pointwise(Near(kFp32), std::vector{.967377323, -2.029622727, 3.028622743, -4.027622752}));
  EXPECT_THAT(golden_run("Adam", params, 2),
              Pointwise(Near(kFp32), std::vector{.923914124, -2.070088973, 3.068090006, -4.066091022}));
}

TEST(Adam, GivesTheGoldenValuesWithDecayInTheGradient) {
  const char* corrected = R"({"lr": 0.01, "weight_decay": 0.1, "adam_w_mode": false})";
  EXPECT_THAT(golden_run("Adam", corrected, 1), Pointwise(Near(kFp32), std::vector{.99, -2., 3., -4.}));
  // In the table's double precision -.3 + .1 * 3 is 5.6e-17, which the division blows up to 2.9e-6; in fp32 it is 0.
  EXPECT_THAT(golden_run("Adam", corrected, 2), Pointwise(Near(3e-6), std::vector{.980001339, -2., 3.00000292, -4.}));
  const char* plain = R"({"lr": 0.01, "weight_decay": 0.1, "adam_w_mode": false, "bias_correction": false})";
  EXPECT_THAT(golden_run("Adam", plain, 1), Pointwise(Near(kFp32), std::vector{.968377273, -2., 3., -4.}));
  EXPECT_THAT(golden_run("Adam", plain, 2), Pointwise(Near(kFp32), std::vector{.925900407, -2., 3.000000056, -4.}));
}

TEST(AdamW, IgnoresAdamWModeBecauseItsDecayIsAlwaysDecoupled) {
  EXPECT_EQ(golden_run("AdamW", R"({"weight_decay": 0.1, "adam_w_mode": false})", 2),
            golden_run("AdamW", R"({"weight_decay": 0.1})", 2));
  const auto log = [](const char* type, const char* params) {
    return OptimizerUnderTest("adam", type, Json::parse(params)).component.log();
  };
  EXPECT_THAT(log("AdamW", R"({"adam_w_mode": false})"),
              ElementsAre("info: adam_w_mode: false has no effect on AdamW, whose decay is always decoupled. For decay "
                          "as a part of the gradient, take the type Adam with it."));
  EXPECT_THAT(log("AdamW", R"({"adam_w_mode": true})"), IsEmpty());
  EXPECT_THAT(log("Adam", R"({"adam_w_mode": false})"), IsEmpty());
}

/// Adam as its paper has it, in double precision.
struct Reference {
  double lr = 0.01, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, decay = 0;
  bool amsgrad = false;
  std::vector<double> p, m, v, greatest;
  int t = 0;

  void update(const std::vector<double>& g) {
    m.resize(p.size()), v.resize(p.size()), greatest.resize(p.size());
    ++t;
    for (std::size_t i = 0; i < p.size(); ++i) {
      m[i] = beta1 * m[i] + (1 - beta1) * g[i];
      v[i] = beta2 * v[i] + (1 - beta2) * g[i] * g[i];
      greatest[i] = std::max(greatest[i], v[i]);
      const double c1 = 1 - std::pow(beta1, t), c2 = 1 - std::pow(beta2, t);
      const double second = amsgrad ? greatest[i] : v[i];
      p[i] -= lr * (m[i] / c1 / (std::sqrt(second / c2) + eps) + decay * p[i]);
    }
  }
};

TEST(Adam, FollowsTheFormulaForFiftyUpdatesOfEveryLength) {
  for (const std::int64_t count : {1, 7, 16, 33, 1000}) {
    OptimizerUnderTest optimizer("adam", "AdamW", Json::parse(R"({"lr": 0.01, "weight_decay": 0.1})"));
    auto& slot = optimizer.add(noise(count, 1));
    Reference reference{.decay = 0.1, .p = values_of(slot.param)};
    for (int t = 0; t < 50; ++t) {
      slot.grad = noise(count, 100 + t);
      optimizer.update();
      reference.update(values_of(slot.grad));
    }
    EXPECT_THAT(values_of(slot.param), Pointwise(Near(2e-6), reference.p)) << count << " elements";
  }
}

TEST(Adam, KeepsTheGreatestSecondMomentWithAmsgrad) {
  const Json params = Json::parse(R"({"lr": 0.01, "torch_adam": true, "amsgrad": true, "weight_decay": 0})");
  OptimizerUnderTest optimizer("adam", "AdamW", params);
  auto& slot = optimizer.add(noise(100, 1));
  Reference reference{.amsgrad = true, .p = values_of(slot.param)};
  for (int t = 0; t < 50; ++t) {
    slot.grad = noise(100, 100 + t).mul_(t < 10 ? 10 : 0.1);
    optimizer.update();
    reference.update(values_of(slot.grad));
  }
  EXPECT_THAT(values_of(slot.param), Pointwise(Near(2e-6), reference.p));
}

TEST(AdamW, DecaysByOneHundredthWithTorchsDefaults) {
  EXPECT_EQ(golden_run("AdamW", R"({"torch_adam": true})", 3), golden_run("AdamW", R"({"weight_decay": 0.01})", 3));
  EXPECT_EQ(golden_run("AdamW", "{}", 3), golden_run("AdamW", R"({"weight_decay": 0})", 3));
  EXPECT_EQ(golden_run("Adam", R"({"torch_adam": true, "adam_w_mode": false})", 3),
            golden_run("Adam", R"({"adam_w_mode": false, "weight_decay": 0})", 3));
}

TEST(Adam, MultipliesGradientsByTheScale) {
  OptimizerUnderTest scaled("adam", "Adam"), plain("adam", "Adam");
  scaled.add(noise(100, 1)).grad = noise(100, 2).mul_(1024);
  plain.add(noise(100, 1)).grad = noise(100, 2);
  scaled.update(1.0 / 1024);
  plain.update();
  EXPECT_TRUE(at::equal(scaled.slot(0).param, plain.slot(0).param));
}

TEST(Adam, LeavesTheWeightsAtRateZeroAndMovesTheMoments) {
  OptimizerUnderTest optimizer("adam", "AdamW", Json::parse(R"({"lr": 0, "weight_decay": 0.1})"));
  auto& slot = optimizer.add(noise(100, 1));
  slot.grad = noise(100, 2);
  optimizer.update();
  EXPECT_TRUE(at::equal(slot.param, noise(100, 1)));
  EXPECT_FALSE(at::equal(optimizer.state(0, "exp_avg"), at::empty({100}).zero_()));
}

TEST(Adam, LeavesTheWeightsUnderAZeroGradientWithoutDecay) {
  OptimizerUnderTest optimizer("adam", "Adam");
  optimizer.add(noise(100, 1));
  optimizer.update();
  EXPECT_TRUE(at::equal(optimizer.slot(0).param, noise(100, 1)));
}

TEST(Adam, CountsTheStepsOfEachParameterByItself) {
  OptimizerUnderTest optimizer("adam", "Adam", Json::parse(R"({"lr": 0.01})"));
  for (const std::int64_t done : {0, 7, 0}) {
    optimizer.add(tensor_of({1, 2, 3})).grad = tensor_of({.1, .1, .1});
    optimizer.state(optimizer.size() - 1, "step").fill_(done);
  }
  optimizer.update();
  EXPECT_TRUE(at::equal(optimizer.slot(0).param, optimizer.slot(2).param));
  EXPECT_FALSE(at::equal(optimizer.slot(0).param, optimizer.slot(1).param));
  EXPECT_EQ(optimizer.state(1, "step").data_ptr<std::int64_t>()[0], 8);
}

TEST(Adam, GivesEachGroupItsOwnNumbers) {
  OptimizerUnderTest optimizer("adam", "AdamW", Json::parse(R"({"lr": 0.01, "weight_decay": 0.1})"));
  optimizer.add_group(Json::parse(R"({"lr": 0.02, "weight_decay": 0})"));
  for (const std::uint32_t group : {0, 1}) optimizer.add(tensor_of({1, -2}), group).grad = tensor_of({.1, .2});
  optimizer.update();
  EXPECT_THAT(values_of(optimizer.slot(0).param), Pointwise(Near(kFp32), std::vector{.989, -2.008}));
  EXPECT_THAT(values_of(optimizer.slot(1).param), Pointwise(Near(kFp32), std::vector{.98, -2.02}));
}

// 100,003 elements are enough for several threads and leave an incomplete vector at the end.
TEST(Adam, GivesTheSameBitsInOneSlotAsInThreeUnevenOnes) {
  constexpr std::int64_t kCount = 100'003;
  const std::int64_t cuts[] = {0, 33, 70'001, kCount};
  OptimizerUnderTest whole("adam", "AdamW", Json::parse(R"({"weight_decay": 0.1})"));
  OptimizerUnderTest parts("adam", "AdamW", Json::parse(R"({"weight_decay": 0.1})"));
  const at::Tensor param = noise(kCount, 1);
  whole.add(param.clone());
  for (int i = 0; i < 3; ++i) parts.add(param.slice(0, cuts[i], cuts[i + 1]).clone());
  for (int t = 0; t < 5; ++t) {
    const at::Tensor grad = noise(kCount, 10 + t);
    whole.slot(0).grad = grad;
    for (int i = 0; i < 3; ++i) parts.slot(i).grad = grad.slice(0, cuts[i], cuts[i + 1]).clone();
    whole.update();
    parts.update();
  }
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(at::equal(whole.slot(0).param.slice(0, cuts[i], cuts[i + 1]), parts.slot(i).param)) << "part " << i;
  }
}

TEST(Adam, TouchesOnlyItsSlots) {
  at::Tensor memory = noise(300, 1);
  OptimizerUnderTest optimizer("adam", "Adam");
  optimizer.add(memory.slice(0, 101, 199)).grad = noise(98, 2);
  optimizer.update();
  EXPECT_TRUE(at::equal(memory.slice(0, 0, 101), noise(300, 1).slice(0, 0, 101)));
  EXPECT_TRUE(at::equal(memory.slice(0, 199, 300), noise(300, 1).slice(0, 199, 300)));
}

TEST(Adam, LetsANanThroughWithoutCrashing) {
  OptimizerUnderTest optimizer("adam", "Adam");
  optimizer.add(tensor_of({1, 2})).grad = tensor_of({std::numeric_limits<double>::quiet_NaN(), 1});
  optimizer.update();
  EXPECT_TRUE(std::isnan(values_of(optimizer.slot(0).param)[0]));
  EXPECT_FALSE(std::isnan(values_of(optimizer.slot(0).param)[1]));
}

class AdamDtypes : public ::testing::TestWithParam<at::ScalarType> {};

TEST_P(AdamDtypes, ReadsGradientsOfThatTypeAsTheirValues) {
  OptimizerUnderTest narrow("adam", "AdamW"), wide("adam", "AdamW");
  for (auto* optimizer : {&narrow, &wide}) optimizer->add(noise(3001, 1));
  for (int t = 0; t < 3; ++t) {
    narrow.slot(0).grad = noise(3001, 10 + t).to(GetParam());
    wide.slot(0).grad = narrow.slot(0).grad.to(at::kFloat);
    narrow.update(0.5);
    wide.update(0.5);
  }
  EXPECT_TRUE(at::equal(narrow.slot(0).param, wide.slot(0).param));
}

TEST_P(AdamDtypes, WritesTheRoundedComputeCopyInTheSamePass) {
  OptimizerUnderTest optimizer("adam", "AdamW");
  auto& slot = optimizer.add(noise(100'003, 1));
  slot.grad = noise(100'003, 2).to(GetParam());
  slot.compute = at::empty({100'003}, GetParam());
  optimizer.update();
  EXPECT_EQ(slot.compute_written, 1);
  EXPECT_TRUE(at::equal(slot.compute, slot.param.to(GetParam())));
}

// Copies of a million elements and more go past the caches where they are aligned, which a part of a tensor need not
// be.
TEST_P(AdamDtypes, WritesLargeCopiesWhereverTheyStand) {
  constexpr std::int64_t kCount = (1 << 20) + 77;
  for (const std::int64_t offset : {0, 1, 8}) {
    OptimizerUnderTest optimizer("adam", "AdamW");
    auto& slot = optimizer.add(noise(kCount, 1));
    slot.grad = noise(kCount, 2).to(GetParam());
    const at::Tensor memory = at::empty({kCount + 64}, GetParam()).zero_();
    slot.compute = memory.slice(0, offset, offset + kCount);
    optimizer.update();
    EXPECT_TRUE(at::equal(slot.compute, slot.param.to(GetParam()))) << offset;
    EXPECT_EQ(memory.slice(0, 0, offset).count_nonzero().item<int>(), 0);
    EXPECT_EQ(memory.slice(0, offset + kCount).count_nonzero().item<int>(), 0);
  }
}

TEST_P(AdamDtypes, KeepsMomentsInThatTypeWhereTheEngineSaysSo) {
  OptimizerUnderTest narrow("adam", "AdamW"), wide("adam", "AdamW");
  narrow.add(noise(3001, 1), 0, GetParam());
  wide.add(noise(3001, 1));
  for (auto* optimizer : {&narrow, &wide}) optimizer->slot(0).grad = noise(3001, 2);
  narrow.update();
  wide.update();
  EXPECT_TRUE(at::equal(narrow.slot(0).param, wide.slot(0).param)) << "the first update starts from exact zeros";
  EXPECT_TRUE(at::equal(narrow.state(0, "exp_avg"), wide.state(0, "exp_avg").to(GetParam())));
  EXPECT_TRUE(at::equal(narrow.state(0, "exp_avg_sq"), wide.state(0, "exp_avg_sq").to(GetParam())));
}

INSTANTIATE_TEST_SUITE_P(SixteenBits, AdamDtypes, ::testing::Values(at::kBFloat16, at::kHalf),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

TEST(Adam, WritesNoCopyWhereThereIsNone) {
  OptimizerUnderTest optimizer("adam", "Adam");
  optimizer.add(noise(3, 1));
  optimizer.update();
  EXPECT_EQ(optimizer.slot(0).compute_written, 0);
}

TEST(Adam, RefusesParametersThatAreNotFloat32) {
  OptimizerUnderTest optimizer("adam", "AdamW");
  optimizer.add(noise(3, 1)).param = noise(3, 1).to(at::kBFloat16);
  optimizer.slot(0).name = "h.11.mlp.w";
  EXPECT_THAT([&] { optimizer.update(); },
              ThrowsMessage<std::runtime_error>(
                  "parameter 'h.11.mlp.w': AdamW updates float32 parameters; this one is bfloat16."));
}

TEST(Adam, RefusesGradientsAndStatesOfOtherTypes) {
  OptimizerUnderTest optimizer("adam", "Adam");
  optimizer.add(noise(3, 1)).grad = noise(3, 1).to(at::kDouble);
  EXPECT_THAT([&] { optimizer.update(); },
              ThrowsMessage<std::runtime_error>("parameter 'p0': Adam takes float32, bfloat16 or float16 gradients in "
                                                "host memory; this one is float64."));
  optimizer.slot(0).grad = noise(3, 1);
  optimizer.slot(0).state[1] = noise(3, 1).to(at::kInt);
  EXPECT_THAT([&] { optimizer.update(); }, ThrowsMessage<std::runtime_error>(
                                               "parameter 'p0': Adam takes float32, bfloat16 or float16 states in host "
                                               "memory; state 1 is int32."));
  optimizer.slot(0).state[3] = noise(1, 1);
  EXPECT_THAT([&] { optimizer.update(); },
              ThrowsMessage<std::runtime_error>(
                  "parameter 'p0': Adam keeps state 3 as an int64 in host memory; this one is float32."));
}

TEST(Adam, RefusesAmsgradWithoutTorchAdam) {
  EXPECT_THAT([] { OptimizerUnderTest("adam", "Adam", Json::parse(R"({"amsgrad": true})")); },
              ThrowsMessage<std::runtime_error>(
                  "amsgrad: true needs \"torch_adam\": true beside it; only torch's form of Adam has AMSGrad."));
}

TEST(Adam, RefusesUncorrectedBiasWithTorchAdam) {
  EXPECT_THAT(
      [] { OptimizerUnderTest("adam", "AdamW", Json::parse(R"({"torch_adam": true, "bias_correction": false})")); },
      ThrowsMessage<std::runtime_error>(
          "bias_correction: false is not possible with \"torch_adam\": true, which always "
          "corrects the bias. Remove one of them."));
}

}  // namespace
}  // namespace capstan::testing
