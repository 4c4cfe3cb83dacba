#include "core/components/schedule.hpp"

#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <string>

namespace capstan {
namespace {

using testing::ElementsAre;

/// A scheduler of formulas: the rate base / (1 + update + 10 group), first betas 0.5 ^ update.
struct Formula {
  std::string text = "new";
  double base_of_start = 0, beta_of_start = 0;
  double rate_factor = 1;           // of every rate
  std::optional<double> beta = {};  // the second one

  static const capstan_scheduler& table() {
    static const capstan_scheduler instance = [] {
      capstan_scheduler table{};
      table.struct_size = sizeof table;
      table.rate = [](void* self, std::int64_t update, std::uint32_t group, double base, double* out, capstan_error*) {
        *out = static_cast<Formula*>(self)->rate_factor * base / (1.0 + static_cast<double>(update) + 10.0 * group);
        return CAPSTAN_OK;
      };
      table.momentum = [](void* self, std::int64_t update, std::uint32_t, double betas[2], capstan_error*) {
        betas[0] = std::pow(0.5, static_cast<double>(update));
        betas[1] = static_cast<Formula*>(self)->beta.value_or(betas[1]);
        return CAPSTAN_OK;
      };
      table.start = [](void* self, const capstan_schedule_start* start, capstan_error*) {
        static_cast<Formula*>(self)->base_of_start = start->base_lrs[1];
        if (start->betas != nullptr) static_cast<Formula*>(self)->beta_of_start = start->betas[1];
        return CAPSTAN_OK;
      };
      table.load = [](void* self, capstan_str text, capstan_error* error) {
        if (text.size > 3) {
          error->text = "too long";
          return CAPSTAN_FAILED;
        }
        static_cast<Formula*>(self)->text = std::string(text.data, text.size);
        return CAPSTAN_OK;
      };
      table.save = [](void* self, capstan_sink* sink, capstan_error*) {
        sink->text = static_cast<Formula*>(self)->text;
        return CAPSTAN_OK;
      };
      return table;
    }();
    return instance;
  }
};

/// Two groups, of rates 0.4 and 0.8.
ParameterGroups two_groups(const char* params) {
  ComponentChoice optimizer;
  optimizer.params = Json::parse(params);
  ParameterGroupRule rule;
  rule.dims_below = 2;
  rule.overrides = {{"lr", Json(0.8)}};
  return ParameterGroups({{"weight", at::zeros({2, 2}).requires_grad_()}, {"bias", at::zeros({2}).requires_grad_()}},
                         optimizer, {rule});
}

std::optional<Component> component(Formula& formula) {
  static ComponentManifest manifest;
  manifest.type = "Formula";
  static const IndexedPlugin plugin{"/p/libcapstan_formula.so", {}};
  static const capstan_component descriptor{sizeof(capstan_component), {}, {}, nullptr, [](void*) {},
                                            &Formula::table()};
  return Component(&descriptor, &formula, ComponentRef{&plugin, &manifest});
}

TEST(Schedule, WritesTheRateAndBetasOfAnUpdateIntoEveryGroup) {
  Formula formula;
  ParameterGroups groups = two_groups(R"({"lr": 0.4, "betas": [0.9, 0.99]})");
  Schedule schedule(component(formula), groups);
  EXPECT_EQ(formula.base_of_start, 0.8);
  EXPECT_EQ(formula.beta_of_start, 0.99);
  for (const int update : {0, 3, 1}) {  // in any order: a schedule has no memory
    schedule.apply(update);
    if (update > 0) schedule.check(update);
    EXPECT_DOUBLE_EQ(groups[0].find("lr")->front(), 0.4 / (1 + update));
    EXPECT_DOUBLE_EQ(groups[1].find("lr")->front(), 0.8 / (11 + update));
    EXPECT_THAT(*groups[1].find("betas"), ElementsAre(std::pow(0.5, update), 0.99));
  }
  EXPECT_DOUBLE_EQ(schedule.rate(7, 0), 0.4 / 8);
}

TEST(Schedule, TakesABaseRateThatACheckpointGives) {
  Formula formula;
  ParameterGroups groups = two_groups(R"({"lr": 0.4})");
  Schedule schedule(component(formula), groups);
  groups.set_base_lr(0, 6);
  schedule.apply(1);
  EXPECT_DOUBLE_EQ(groups[0].find("lr")->front(), 3);
}

TEST(Schedule, LeavesTheRatesAloneWithoutAScheduler) {
  ParameterGroups groups = two_groups(R"({"lr": 0.4})");
  Schedule schedule(std::nullopt, groups);
  schedule.apply(100);
  EXPECT_FALSE(schedule.present());
  EXPECT_EQ(groups[0].find("lr")->front(), 0.4);
  EXPECT_EQ(schedule.rate(100, 1), 0.8);
  EXPECT_EQ(schedule.save(), "");
}

/// What check() says of an update, behind the schedule's name and file.
std::string refusal(const Schedule& schedule, std::int64_t update_index) {
  const std::string opening = "scheduler 'Formula' (/p/libcapstan_formula.so): gives update ";
  try {
    schedule.check(update_index);
  } catch (const PluginError& error) {
    EXPECT_EQ(std::string(error.what()).substr(0, opening.size()), opening);
    return std::string(error.what()).substr(opening.size());
  }
  return "fine";
}

TEST(Schedule, RefusesARateThatNoUpdateCanUse) {
  Formula formula;
  ParameterGroups groups = two_groups(R"({"lr": 0.4})");
  Schedule schedule(component(formula), groups);
  formula.rate_factor = -1;
  schedule.apply(3);
  EXPECT_EQ(refusal(schedule, 3),
            "3 the learning rate -0.1 in parameter group 0; it must be finite and not below 0. Correct "
            "scheduler.params, or tell the plugin's author. The update was not made.");
  const std::pair<double, const char*> spoilt[] = {{std::nan(""), "nan"}, {HUGE_VAL, "inf"}, {-HUGE_VAL, "-inf"}};
  for (const auto& [factor, text] : spoilt) {
    formula.rate_factor = factor;
    schedule.apply(12);
    EXPECT_THAT(refusal(schedule, 12), testing::StartsWith("12 the learning rate " + std::string(text) + " in "));
  }
  for (const double factor : {0.0, 1.0}) {
    formula.rate_factor = factor;
    schedule.apply(3);
    EXPECT_EQ(refusal(schedule, 3), "fine");
  }
}

TEST(Schedule, RefusesBetasThatNoUpdateCanUse) {
  Formula formula;
  ParameterGroups groups = two_groups(R"({"lr": 0.4, "betas": [0.9, 0.99]})");
  Schedule schedule(component(formula), groups);
  schedule.apply(0);
  EXPECT_EQ(
      refusal(schedule, 0),  // 0.5 ^ 0
      "0 the betas[0] 1 in parameter group 0; it must be from 0 to below 1. Correct scheduler.params, or tell the "
      "plugin's author. The update was not made.");
  const std::pair<double, const char*> spoilt[] = {{1.0, "1"}, {-0.5, "-0.5"}, {std::nan(""), "nan"}};
  for (const auto& [beta, text] : spoilt) {
    formula.beta = beta;
    schedule.apply(1);
    EXPECT_THAT(refusal(schedule, 1), testing::StartsWith("1 the betas[1] " + std::string(text) + " in "));
  }
  formula.beta = 0;
  schedule.apply(1);
  EXPECT_EQ(refusal(schedule, 1), "fine");
}

TEST(Schedule, IsNotCheckedWithoutAScheduler) {
  ParameterGroups groups = two_groups(R"({"lr": 0.4, "betas": [0.9, 1.5]})");
  EXPECT_EQ(refusal(Schedule(std::nullopt, groups), 0), "fine");
}

TEST(Schedule, SavesAndLoadsWhatTheSchedulerKeeps) {
  Formula formula;
  ParameterGroups groups = two_groups(R"({"lr": 0.4, "betas": [0.9, 0.99]})");
  Schedule schedule(component(formula), groups);
  EXPECT_EQ(schedule.save(), "new");
  schedule.load("old");
  EXPECT_EQ(schedule.save(), "old");
  schedule.load("");  // what a scheduler saves that keeps nothing
  EXPECT_EQ(schedule.save(), "old");
  EXPECT_THAT([&] { schedule.load("much too long"); },
              testing::ThrowsMessage<PluginError>("scheduler 'Formula', load: too long"));
}

}  // namespace
}  // namespace capstan
