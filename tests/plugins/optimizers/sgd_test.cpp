#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/plugins/optimizers/optimizer_under_test.hpp"

namespace capstan::testing {
namespace {

using ::testing::ThrowsMessage;

TEST(SGD, TakesTheFirstGradientAsItsBufferWithoutDampening) {
  OptimizerUnderTest optimizer("sgd", "SGD", Json::parse(R"({"lr": 1, "momentum": 0.5, "dampening": 0.5})"));
  optimizer.add(tensor_of({0})).grad = tensor_of({1});
  optimizer.update();
  EXPECT_EQ(values_of(optimizer.slot(0).param)[0], -1);
  optimizer.update();
  EXPECT_EQ(values_of(optimizer.slot(0).param)[0], -2) << "0.5 * 1 + (1 - 0.5) * 1";
}

TEST(SGD, KeepsNoStateWithoutMomentum) {
  OptimizerUnderTest optimizer("sgd", "SGD");
  for (const at::Tensor& state : optimizer.add(noise(3, 1)).state) EXPECT_FALSE(state.defined());
  optimizer.update();
}

TEST(SGD, LetsAGroupHaveMomentumOfItsOwn) {
  OptimizerUnderTest optimizer("sgd", "SGD", Json::parse(R"({"lr": 1})"));
  optimizer.add_group(Json::parse(R"({"momentum": 0.5})"));
  for (const std::uint32_t group : {0, 1}) optimizer.add(tensor_of({0}), group).grad = tensor_of({1});
  optimizer.update();
  optimizer.update();
  EXPECT_EQ(values_of(optimizer.slot(0).param)[0], -2);
  EXPECT_EQ(values_of(optimizer.slot(1).param)[0], -2.5);
}

TEST(SGD, RefusesNesterovWithoutMomentumOrWithDampening) {
  const char* text = "nesterov: needs a momentum above 0 and a dampening of 0.";
  EXPECT_THAT([] { OptimizerUnderTest("sgd", "SGD", Json::parse(R"({"nesterov": true})")); },
              ThrowsMessage<std::runtime_error>(text));
  EXPECT_THAT(
      [] { OptimizerUnderTest("sgd", "SGD", Json::parse(R"({"nesterov": true, "momentum": 0.9, "dampening": 0.1})")); },
      ThrowsMessage<std::runtime_error>(text));
  OptimizerUnderTest optimizer("sgd", "SGD");
  optimizer.group(0)["nesterov"] = true;
  optimizer.add(noise(3, 1));
  EXPECT_THAT([&] { optimizer.update(); }, ThrowsMessage<std::runtime_error>(text));
}

TEST(SGD, NamesItselfWhenItRefusesAParameter) {
  OptimizerUnderTest optimizer("sgd", "SGD");
  optimizer.add(noise(3, 1)).param = noise(3, 1).to(at::kHalf);
  EXPECT_THAT([&] { optimizer.update(); }, ThrowsMessage<std::runtime_error>("parameter 'p0': SGD updates float32 "
                                                                             "parameters; this one is float16."));
}

}  // namespace
}  // namespace capstan::testing
