#include "core/engine/schedule.hpp"

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

  static const capstan_scheduler& table() {
    static const capstan_scheduler instance = [] {
      capstan_scheduler table{};
      table.struct_size = sizeof table;
      table.rate = [](void*, std::int64_t update, std::uint32_t group, double base, double* out, capstan_error*) {
        *out = base / (1.0 + static_cast<double>(update) + 10.0 * group);
        return CAPSTAN_OK;
      };
      table.momentum = [](void*, std::int64_t update, std::uint32_t, double betas[2], capstan_error*) {
        betas[0] = std::pow(0.5, static_cast<double>(update));
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
  static const capstan_component descriptor{sizeof(capstan_component), {}, {}, nullptr, [](void*) {},
                                            &Formula::table()};
  return Component(&descriptor, &formula, ComponentRef{nullptr, &manifest});
}

TEST(Schedule, WritesTheRateAndBetasOfAnUpdateIntoEveryGroup) {
  Formula formula;
  ParameterGroups groups = two_groups(R"({"lr": 0.4, "betas": [0.9, 0.99]})");
  Schedule schedule(component(formula), groups);
  EXPECT_EQ(formula.base_of_start, 0.8);
  EXPECT_EQ(formula.beta_of_start, 0.99);
  for (const int update : {0, 3, 1}) {  // in any order: a schedule has no memory
    schedule.apply(update);
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
