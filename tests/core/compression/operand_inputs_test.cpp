#include "core/compression/operand_inputs.hpp"

#include <ATen/ThreadLocalState.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/round.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "core/compression/straight_through.hpp"
#include "core/precision/autocast.hpp"
#include "tests/plugins/compression/quantized.hpp"

namespace capstan {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::Layer;

/// What operators get in place of a two-dimensional input: 8 bits, a range for each row.
at::Tensor rounded(const at::Tensor& x) {
  const at::Tensor scale = x.detach().abs().amax({-1}, true) / 128;
  return at::round(x.detach() / scale).clamp(-128, 127) * scale;
}

Compressions inputs_of(const std::vector<Layer>& layers, const std::string& calibration = "dynamic") {
  return testing::planned(R"({"shared_parameters": {"enabled": true, "schedule_offset": 0,
      "quantization_type": "symmetric", "range_calibration": ")" +
                              calibration +
                              R"("}, "different_groups": {"aq1": {"params": {"bits": 8}, "modules": ["fc"]}}})",
                          "activation_quantization", layers);
}

/// Two layers, the first of which is planned.
class Inputs : public ::testing::Test {
 protected:
  at::Tensor weight = at::randn({4, 5}).requires_grad_(), other = at::randn({4, 5}).requires_grad_();
  at::Tensor x = at::randn({3, 5}).requires_grad_();
  Compressions compressions = inputs_of({{"fc", "torch.nn.Linear", {4, 5}}, {"out", "torch.nn.Linear", {4, 5}}});
  OperandInputs inputs{compressions, {{"fc.weight", weight}, {"out.weight", other}}};
};

TEST_F(Inputs, AreThoseOfOperatorsThatUseAPlannedWeight) {
  const at::Tensor bias = at::randn({4});
  const at::Tensor given = rounded(x);
  const InterceptorScope scope(inputs);
  EXPECT_THAT(inputs.unused(), ElementsAre("fc"));
  EXPECT_TRUE(at::equal(at::linear(x, other), at::linear(x.detach(), other)));
  EXPECT_THAT(inputs.unused(), ElementsAre("fc"));
  EXPECT_TRUE(at::equal(at::linear(x, weight), at::linear(given, weight.detach().clone())));
  EXPECT_THAT(inputs.unused(), IsEmpty());
  const at::Tensor copy = weight.detach().clone();
  EXPECT_TRUE(at::equal(at::linear(x, weight, bias), at::linear(given, copy, bias)));
  EXPECT_TRUE(at::equal(at::addmm(bias, x, weight.t()), at::addmm(bias, given, copy.t())));
  EXPECT_TRUE(at::equal(at::mm(x, weight.t()), at::mm(given, copy.t())));
  EXPECT_TRUE(at::equal(at::matmul(x, weight.t()), at::matmul(given, copy.t())));
}

TEST_F(Inputs, PassGradientsOnUnchanged) {
  const at::Tensor factor = at::randn({3, 4});
  {
    const InterceptorScope scope(inputs);  // of a forward that takes gradients
    (at::linear(x, weight) * factor).sum().backward();
  }
  // As if the operator's input were a tensor of its own.
  const at::Tensor given = rounded(x).requires_grad_(), copy = weight.detach().clone().requires_grad_();
  (at::linear(given, copy) * factor).sum().backward();
  EXPECT_TRUE(at::equal(x.grad(), given.grad()));
  EXPECT_TRUE(at::equal(weight.grad(), copy.grad()));
}

TEST_F(Inputs, NeedNoGraph) {
  const InterceptorScope scope(inputs);
  const at::NoGradGuard no_grad;
  const at::Tensor out = at::linear(x, weight);
  EXPECT_FALSE(out.requires_grad());
  EXPECT_TRUE(at::equal(out, at::linear(rounded(x), weight.detach().clone())));
}

TEST_F(Inputs, AreNotWrittenAndMayLieInAnyOrder) {
  const at::Tensor columns = at::randn({5, 3}).t(), before = columns.contiguous();
  const InterceptorScope scope(inputs);
  EXPECT_TRUE(at::equal(at::linear(columns, weight), at::linear(rounded(before), weight.detach().clone())));
  EXPECT_TRUE(at::equal(columns, before));
}

TEST_F(Inputs, AreRoundedBeforeAutocastNarrowsThem) {
  const AutocastScope autocast(at::kCPU, at::kBFloat16);
  const at::Tensor expected = at::linear(rounded(x), weight.detach().clone());
  const InterceptorScope scope(inputs);
  const at::Tensor out = at::linear(x, weight);
  EXPECT_EQ(out.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(at::equal(out, expected));
}

TEST_F(Inputs, AreTheSameInOtherThreadsOfAForward) {
  const at::Tensor expected = at::linear(rounded(x), weight.detach().clone());
  std::vector<at::Tensor> made(4);
  {
    const InterceptorScope scope(inputs);
    const at::ThreadLocalState state;
    std::vector<std::thread> threads;
    for (at::Tensor& out : made) {
      threads.emplace_back([&] {
        const at::ThreadLocalStateGuard guard(state);
        for (int times = 0; times < 50; ++times) out = at::linear(x, weight);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  for (const at::Tensor& out : made) EXPECT_TRUE(at::equal(out, expected));
}

TEST(OperandInputs, TellWeightsOfOneStorageApart) {
  const at::Tensor both = at::randn({8, 5}), x = at::randn({3, 5});
  const at::Tensor first = both.narrow(0, 0, 4), second = both.narrow(0, 4, 4);
  const Compressions compressions = inputs_of({{"out", "torch.nn.Linear", {4, 5}}, {"fc", "torch.nn.Linear", {4, 5}}});
  OperandInputs inputs(compressions, {{"out.weight", first}, {"fc.weight", second}});
  const InterceptorScope scope(inputs);
  EXPECT_TRUE(at::equal(at::linear(x, first), at::linear(x, first.clone())));
  EXPECT_TRUE(at::equal(at::linear(x, second), at::linear(rounded(x), second.clone())));
}

TEST(OperandInputs, AreThoseOfConvolutions) {
  const at::Tensor weight = at::randn({4, 3, 3, 3}), x = at::randn({2, 3, 6, 6});
  const Compressions compressions = inputs_of({{"fc", "torch.nn.Conv2d", {4, 3, 3, 3}}});
  OperandInputs inputs(compressions, {{"fc.weight", weight}});
  const at::Tensor given = rounded(x.view({2, -1})).view(x.sizes());
  const InterceptorScope scope(inputs);
  EXPECT_TRUE(at::equal(at::conv2d(x, weight), at::conv2d(given, weight.clone())));
  EXPECT_THAT(inputs.unused(), IsEmpty());
}

TEST(OperandInputs, LetEvaluationLeaveTheRangeOfTrainingAlone) {
  const at::Tensor weight = at::randn({4, 5}), x = at::randn({3, 5}), wide = x * 100;
  const Compressions compressions = inputs_of({{"fc", "torch.nn.Linear", {4, 5}}}, "static");
  OperandInputs inputs(compressions, {{"fc.weight", weight}});
  const InterceptorScope scope(inputs);
  inputs.begin(0, /*training=*/true);
  const at::Tensor trained = at::linear(x, weight);
  inputs.begin(0, /*training=*/false);
  at::linear(wide, weight);
  EXPECT_TRUE(at::equal(at::linear(x, weight), trained));
}

TEST(StraightThrough, GivesTheInputTheGradientOfTheValues) {
  const at::Tensor x = at::randn({4}).requires_grad_(), values = at::round(x.detach());
  const at::Tensor out = straight_through(x, values.clone());
  EXPECT_TRUE(at::equal(out, values));
  (out * out).sum().backward();
  EXPECT_TRUE(at::equal(x.grad(), values * 2));
  EXPECT_FALSE(straight_through(x.detach(), values.clone()).requires_grad());
}

}  // namespace
}  // namespace capstan
