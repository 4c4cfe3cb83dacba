// The gradients of a process that trains alone. tests/core/zero holds those of several processes against these.

#include "core/parameters/step_gradients.hpp"

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/errors.hpp"

namespace capstan {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

/// A matrix of 3 x 2 and a vector of 2, in bfloat16.
struct Step {
  explicit Step(GradientOptions options = {}) : gradients(with_parameters(options)) {}

  GradientOptions with_parameters(GradientOptions options) {
    matrix = at::zeros({3, 2}, at::kBFloat16).requires_grad_();
    vector = at::zeros({2}, at::kBFloat16).requires_grad_();
    options.parameters = {matrix, vector};
    options.names = {"matrix", "vector"};
    return options;
  }
  /// A backward that gave the matrix this gradient.
  void backward(const at::Tensor& gradient) {
    at::Tensor& own = matrix.mutable_grad();
    own = own.defined() ? at::add(own, gradient) : gradient.clone();
    gradients.end_backward();
  }
  at::Tensor row(double value) const {
    const auto index = at::tensor({1}, at::kLong).view({1, 1});
    return at::sparse_coo_tensor(index, at::full({1, 2}, value, at::kBFloat16), {3, 2});
  }

  at::Tensor matrix, vector;
  OneProcessGradients gradients;
};

at::Tensor ones(double value) { return at::full({3, 2}, value, at::kBFloat16); }

TEST(OneProcessGradients, AddUpWhereTheParametersTypeLosesBits) {
  GradientOptions options;
  options.accumulates_apart = true;
  Step step(options);
  step.backward(ones(256));
  for (int i = 0; i < 3; ++i) step.backward(ones(1));  // 257 is no bfloat16 number
  EXPECT_FALSE(step.matrix.grad().defined());
  EXPECT_TRUE(step.gradients.kept(0).equal(at::full({3, 2}, 259.0)));
  EXPECT_TRUE(step.gradients.is_here(0));
  EXPECT_FALSE(step.gradients.is_here(1));
}

TEST(OneProcessGradients, AreAutogradsOwnWhereTheTypesAreTheSame) {
  GradientOptions options;
  options.accumulation = at::kBFloat16;
  Step step(options);
  step.backward(ones(2));
  EXPECT_TRUE(step.gradients.kept(0).is_alias_of(step.matrix.grad()));
}

TEST(OneProcessGradients, TellWithinTheLastBackwardWhichAreComplete) {
  for (const bool apart : {false, true}) {
    GradientOptions options;
    options.accumulates_apart = apart;
    options.accumulation = apart ? at::kFloat : at::kBFloat16;
    std::vector<std::string> told;
    options.complete = [&](std::size_t i, const at::Tensor& gradient) {
      told.push_back(std::to_string(i) + ": " + std::to_string(gradient.view({-1}).select(0, 0).item<double>()));
    };
    Step step(options);
    for (const bool last : {false, true}) {
      step.gradients.begin_backward("step", last, false, {});
      (step.matrix * 3).sum().backward();
      (step.vector * 4).sum().backward();
      // Before end_backward(): the rest of backward may still be under way.
      const std::vector<std::string> complete{"0: 6.000000", "1: 8.000000"};
      EXPECT_EQ(told, last ? complete : std::vector<std::string>());
      step.gradients.end_backward();
    }
    EXPECT_EQ(told.size(), 2U);
    EXPECT_EQ(step.gradients.kept(0).scalar_type(), options.accumulation);
    EXPECT_TRUE(step.gradients.kept(0).eq(6).all().item<bool>());
  }
}

TEST(OneProcessGradients, AreCollectedForTheUpdate) {
  Step step;
  step.backward(ones(1).t().contiguous().t());  // not contiguous
  const auto& collected = step.gradients.collect();
  ASSERT_EQ(collected.size(), 1u);
  EXPECT_TRUE(collected[0]->is_contiguous());
  EXPECT_EQ(step.gradients.collected(0), collected[0]);
  EXPECT_EQ(step.gradients.collected(1), nullptr);
  EXPECT_TRUE(step.gradients.has(0) && step.gradients.on_any_rank(0));
  EXPECT_FALSE(step.gradients.has(1) || step.gradients.on_any_rank(1));
  step.gradients.drop(/*applied=*/true);
  EXPECT_FALSE(step.gradients.has(0) || step.gradients.shown(0).defined());
  EXPECT_TRUE(step.gradients.collect().empty());
}

TEST(OneProcessGradients, AreZeroWhereTheStepGaveNoneAndSomebodyAsks) {
  Step step;
  step.backward(ones(3));
  step.gradients.give_zeros(0);
  step.gradients.give_zeros(1);
  EXPECT_TRUE(step.gradients.kept(0).equal(ones(3)));
  EXPECT_TRUE(step.gradients.kept(1).equal(at::zeros({2})));
}

TEST(OneProcessGradients, TakeOtherValues) {
  Step step;
  step.backward(ones(3));
  const at::Tensor own = step.matrix.grad();
  step.gradients.set(0, at::full({6}, 5.0));
  EXPECT_TRUE(own.equal(ones(5)));  // in the memory that autograd made
  step.gradients.set(1, at::full({2}, 7.0));
  EXPECT_TRUE(step.gradients.kept(1).equal(at::full({2}, 7.0)));
}

TEST(OneProcessGradients, MayBeSparseWhereThatIsAskedFor) {
  Step refused;
  refused.matrix.mutable_grad() = refused.row(2);
  EXPECT_FALSE(refused.gradients.flat(0).defined());
  EXPECT_THAT([&] { refused.gradients.collect(); },
              ThrowsMessage<RuntimeFault>(HasSubstr("parameter 'matrix': has a sparse gradient")));

  GradientOptions options;
  options.sparse = options.sparse_rows = true;
  Step step(options);
  step.matrix.mutable_grad() = step.row(2);
  step.gradients.end_backward();
  ASSERT_EQ(step.gradients.collect().size(), 1u);
  EXPECT_TRUE(step.gradients.collected(0)->select(0, 1).equal(at::full({2}, 2.0, at::kBFloat16)));
  ASSERT_NE(step.gradients.rows()->rows(0), nullptr);
  EXPECT_THAT(*step.gradients.rows()->rows(0), ElementsAre(1));
}

TEST(OneProcessGradients, KeepTheirRowsUntilSomebodyGivesDenseValues) {
  GradientOptions options;
  options.sparse = options.sparse_rows = true;
  Step step(options);
  step.matrix.mutable_grad() = step.row(2);
  step.gradients.set(0, at::full({6}, 4.0));
  step.gradients.collect();
  EXPECT_EQ(step.gradients.rows()->rows(0), nullptr);  // all of them
}

}  // namespace
}  // namespace capstan
