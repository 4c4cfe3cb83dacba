#include "core/tuning/space.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "tests/core/tuning/recorded.hpp"

namespace capstan::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::vector<std::int64_t> integers(const Json& list) {
  std::vector<std::int64_t> values;
  for (const Json& value : list.as_array()) values.push_back(value.as_integer());
  return values;
}

std::vector<std::string> template_order(int stage) {
  const Json zero = stage_template(stage, std::nullopt);
  std::vector<std::string> order;
  for (const auto& [name, value] : zero.as_object()) order.push_back(name);
  return order;
}

TEST(TuningSpace, HasTheRecordedExperimentsByTheirNames) {
  int experiments = 0;
  for (const Json& one : recorded_autotuning().at("experiments").as_array()) {
    SCOPED_TRACE(one.at("name").as_string());
    const int stage = static_cast<int>(one.at("stage").as_integer());
    const std::vector<TunedKey> keys = template_keys(stage);
    EXPECT_EQ(space_name(stage, keys), one.at("space").as_string());
    const BatchBudget budget{one.at("budget").as_integer(), static_cast<int>(one.at("devices").as_integer())};
    std::vector<TuningPoint> points =
        all_points(stage, keys, integers(one.at("micro_batches")), budget, template_order(stage));
    std::vector<std::string> names, wanted;
    for (const TuningPoint& point : points) {
      // Stage 0 has nothing to tune: there the fast name is ours, and the full one DeepSpeed's.
      names.push_back(keys.empty() ? "z0_tmbspg" + std::to_string(point.micro_batch) + "_gas" +
                                         std::to_string(point.accumulation)
                                   : point.name);
      EXPECT_EQ(point.train_batch, one.at("train_batch_size").as_integer());
    }
    for (const Json& name : one.at("names").as_array()) wanted.push_back(name.as_string());
    std::sort(names.begin(), names.end());
    std::sort(wanted.begin(), wanted.end());
    EXPECT_EQ(names, wanted);
    EXPECT_EQ(static_cast<std::int64_t>(points.size()), one.at("count").as_integer());
    ++experiments;
  }
  EXPECT_GE(experiments, 4);
}

TEST(TuningSpace, TakesTheBucketsOfStage3FromTheHiddenSize) {
  for (const Json& one : recorded_autotuning().at("experiments").as_array()) {
    if (!one.at("hidden_size").is_integer()) continue;
    const Json zero = stage_template(3, one.at("hidden_size").as_integer());
    for (const char* name :
         {"stage3_prefetch_bucket_size", "stage3_param_persistence_threshold", "stage3_max_live_parameters",
          "stage3_max_reuse_distance", "sub_group_size", "stage3_gather_16bit_weights_on_model_save"}) {
      EXPECT_EQ(zero.at(name), one.at("first").at(name)) << name;
    }
  }
}

TEST(TuningSpace, NamesAPointOfStageAndMicroBatchAlone) {
  const std::vector<TuningPoint> points = all_points(2, {}, {3}, {3, 2});
  ASSERT_THAT(points, SizeIs(1));
  EXPECT_EQ(points[0].name, "z2_gas1_tmbspg3");
  EXPECT_EQ(points[0].space, "z2");
  EXPECT_EQ(points[0].train_batch, 6);
}

TEST(TuningSpace, WritesValuesAndInitialsAsDeepSpeedDoes) {
  EXPECT_EQ(initials("train_micro_batch_size_per_gpu"), "tmbspg");
  EXPECT_EQ(initials("zero_optimization.stage3_prefetch_bucket_size"), "spbs");
  EXPECT_EQ(initials("zero_optimization.offload_optimizer.buffer_count"), "oo_bc");
  EXPECT_EQ(initials("zero_optimization.offload_param.device"), "op_d");
  EXPECT_EQ(value_text(9000), "9000");
  EXPECT_EQ(value_text(9001), "9.0e+03");
  EXPECT_EQ(value_text(5e8), "5.0e+08");
  EXPECT_EQ(value_text(true), "T");
  EXPECT_EQ(value_text(Json()), "N");
}

std::vector<TuningPoint> distinct(int stage, const std::vector<TunedKey>& keys, const SpaceFacts& facts) {
  return distinct_points(all_points(stage, keys, {4}, {4, facts.world}), facts);
}

TEST(TuningSpace, TakesPointsThatDoTheSameForOne) {
  SpaceFacts facts;
  facts.world = 2;
  // All of DeepSpeed's buckets are above the largest one here, and two of its keys have no effect.
  facts.trainable = 3'000'000;
  EXPECT_THAT(distinct(1, template_keys(1), facts), SizeIs(1));
  EXPECT_THAT(distinct(2, template_keys(2), facts), SizeIs(2));  // overlap_comm
  EXPECT_THAT(distinct(3, template_keys(3), facts), SizeIs(2));
  facts.world = 1;
  EXPECT_THAT(distinct(2, template_keys(2), facts), SizeIs(1));
}

TEST(TuningSpace, TakesTheStagesOfOneProcessForOne) {
  SpaceFacts facts;
  std::vector<TuningPoint> points;
  for (int stage = 0; stage <= 3; ++stage) points.push_back(all_points(stage, {}, {4}, {4, 1}).front());
  const std::vector<TuningPoint> left = distinct_points(points, facts);
  ASSERT_THAT(left, SizeIs(1));
  EXPECT_EQ(left[0].name, "z0_gas1_tmbspg4");
  facts.world = 2;
  EXPECT_THAT(distinct_points(points, facts), SizeIs(4));
}

TEST(TuningSpace, CapsValuesByTheModel) {
  SpaceFacts facts;
  facts.world = 2;
  facts.trainable = 500'000;
  facts.sizes = {100, 50'000, 400'000};
  const TunedKey persistence{"zero_optimization.stage3_param_persistence_threshold",
                             {10, 99, 100, 49'999, 50'000, 1'000'000}};
  EXPECT_THAT(distinct(3, {persistence}, facts), SizeIs(4));  // none, one, two, all
  EXPECT_THAT(distinct(2, {persistence}, facts), SizeIs(1));  // idle below stage 3
  const TunedKey prefetch{"zero_optimization.stage3_prefetch_bucket_size", {0, 500'000, 50'000'000}};
  EXPECT_THAT(distinct(3, {prefetch}, facts), SizeIs(2));
  const TunedKey bucket{"zero_optimization.reduce_bucket_size", {16384, 500'000, 1'000'000, 500'000'000}};
  EXPECT_THAT(distinct(0, {bucket}, facts), SizeIs(2));
}

TEST(TuningSpace, KeepsOfEachKeyTheValuesThatDiffer) {
  SpaceFacts facts;
  facts.world = 2;
  facts.trainable = 3'000'000;
  const std::vector<TunedKey> keys = distinct_keys(2, template_keys(2), facts);
  ASSERT_THAT(keys, SizeIs(3));  // overlap_comm and the two buckets
  EXPECT_THAT(keys[0].values, SizeIs(2));
  EXPECT_THAT(keys[1].values, ElementsAre(Json(1310720)));
  EXPECT_THAT(keys[2].values, ElementsAre(Json(3'000'000)));
}

TEST(TuningSpace, KeepsSectionsThatMayBeLeftOut) {
  SpaceFacts facts;
  facts.world = 2;
  Json section = Json::object();
  section["device"] = "cpu";
  EXPECT_THAT(distinct(2, {{"zero_optimization.offload_optimizer", {section, Json()}}}, facts), SizeIs(2));
}

}  // namespace
}  // namespace capstan::testing
