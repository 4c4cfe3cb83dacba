#include "core/parameters/parameter_groups.hpp"

#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/errors.hpp"

namespace capstan {
namespace {

using testing::ElementsAre;

std::vector<NamedTensor> parameters() {
  const auto make = [](at::IntArrayRef shape) { return at::zeros(shape).requires_grad_(); };
  return {
      {"h.0.weight", make({3, 3})}, {"h.0.bias", make({3})}, {"norm.weight", make({3})}, {"head.weight", make({3, 3})}};
}

ComponentChoice adam() {
  ComponentChoice choice{"optimizer", "AdamW"};
  choice.params =
      Json::parse(R"({"lr": 0.1, "betas": [0.9, 0.95], "weight_decay": 0.2, "adam_w_mode": true, "name": "x"})");
  return choice;
}

ParameterGroupRule no_decay_below_two_dims() {
  ParameterGroupRule rule;
  rule.dims_below = 2;
  rule.overrides = {{"weight_decay", Json(0)}};
  return rule;
}

TEST(ParameterGroups, HoldTheNumbersOfTheOptimizer) {
  const ParameterGroups groups(parameters(), adam(), {});
  ASSERT_EQ(groups.size(), 1u);
  EXPECT_THAT(*groups[0].find("betas"), ElementsAre(0.9, 0.95));
  EXPECT_THAT(*groups[0].find("adam_w_mode"), ElementsAre(1.0));
  EXPECT_EQ(groups[0].find("name"), nullptr);
  EXPECT_EQ(groups.base_lr(0), 0.1);
}

TEST(ParameterGroups, TakeDecayOffBiasesAndNorms) {
  const ParameterGroups groups(parameters(), adam(), {no_decay_below_two_dims()});
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_THAT(*groups[0].find("weight_decay"), ElementsAre(0.2));
  EXPECT_THAT(*groups[1].find("weight_decay"), ElementsAre(0.0));
  EXPECT_EQ(groups.group_of(0), 0u);
  EXPECT_EQ(groups.group_of(1), 1u);
  EXPECT_EQ(groups.group_of(2), 1u);
  EXPECT_EQ(groups.group_of(3), 0u);
}

TEST(ParameterGroups, GiveAParameterToTheFirstRuleThatSelectsIt) {
  ParameterGroupRule by_name;
  by_name.name_patterns = {"^norm\\."};
  by_name.overrides = {{"lr", Json(0.5)}};
  const ParameterGroups groups(parameters(), adam(), {by_name, no_decay_below_two_dims()});
  EXPECT_EQ(groups.group_of(2), 1u);
  EXPECT_EQ(groups.group_of(1), 2u);
  EXPECT_EQ(groups.base_lr(1), 0.5);
}

TEST(ParameterGroups, DropTheDefaultGroupWhenRulesTakeEverything) {
  ParameterGroupRule all;
  all.name_patterns = {"."};
  const ParameterGroups groups(parameters(), adam(), {all});
  EXPECT_EQ(groups.size(), 1u);
  EXPECT_EQ(groups.group_of(3), 0u);
}

TEST(ParameterGroups, RefuseARuleThatSelectsNothing) {
  ParameterGroupRule none;
  none.name_patterns = {"attention"};
  EXPECT_THAT([&] { ParameterGroups(parameters(), adam(), {none}); },
              testing::ThrowsMessage<ConfigError>(
                  "capstan.parameter_groups[0]: selects none of the model's trainable parameters (the first is "
                  "'h.0.weight'), or an earlier rule has them all. Change its patterns or remove it."));
}

}  // namespace
}  // namespace capstan
