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

TEST(ParameterGroups, TakeAPatternOfOneNameForThatNameAlone) {
  std::vector<NamedTensor> odd = parameters();
  odd.push_back({"h.0.weightx", at::zeros({3}).requires_grad_()});
  odd.push_back({"a+b[0].w", at::zeros({3}).requires_grad_()});
  ParameterGroupRule names, open;
  names.name_patterns = {"^h\\.0\\.weight$", "^a\\+b\\[0\\]\\.w$"};
  open.name_patterns = {"^h.0.bias$"};  // an expression, whose points match anything
  odd[1].name = "h_0_bias";
  const ParameterGroups groups(odd, adam(), {names, open});
  ASSERT_EQ(groups.size(), 3u);
  EXPECT_EQ(groups.group_of(0), 1u);
  EXPECT_EQ(groups.group_of(1), 2u);
  EXPECT_EQ(groups.group_of(2), 0u);
  EXPECT_EQ(groups.group_of(4), 0u);
  EXPECT_EQ(groups.group_of(5), 1u);
}

TEST(ParameterGroups, HaveNoParameterThatIsLeftOut) {
  std::vector<NamedTensor> some = parameters();
  some[0].left_out = some[2].left_out = true;
  ParameterGroupRule rule;
  rule.name_patterns = {"^h\\.0\\.weight$"};
  EXPECT_THROW(ParameterGroups(some, adam(), {rule}), ConfigError);
  EXPECT_EQ(ParameterGroups(some, adam(), {no_decay_below_two_dims()}).group_of(1), 1u);
}

TEST(ParameterGroups, KeepWhatTheProgramWritesApartFromWhatIsConfigured) {
  ParameterGroups groups(parameters(), adam(), {});
  groups.write(0, "lr", {0.5});
  groups.write(0, "eps", {1e-3});
  EXPECT_THAT(*groups[0].find("lr"), ElementsAre(0.5));
  EXPECT_THAT(*groups[0].find("eps"), ElementsAre(1e-3));
  EXPECT_THAT(*groups.configured(0).find("lr"), ElementsAre(0.1));
  EXPECT_EQ(groups.base_lr(0), 0.5);
  const ParameterGroups::Written written = groups.written(0);
  EXPECT_EQ(written.size(), 2u);
  groups.restore(0, {{"weight_decay", {0.0}}});
  EXPECT_THAT(*groups[0].find("lr"), ElementsAre(0.1));
  EXPECT_EQ(groups[0].find("eps"), nullptr);
  EXPECT_THAT(*groups[0].find("weight_decay"), ElementsAre(0.0));
  EXPECT_EQ(groups.base_lr(0), 0.1);
  EXPECT_EQ(groups.pointers()[0], &groups[0]);
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
