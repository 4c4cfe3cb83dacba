// What row, head and channel pruning plan, and refuse.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "core/compression/compressions.hpp"
#include "core/errors.hpp"
#include "core/registry/host.hpp"

namespace capstan {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

/// A transformer's block, with q, k and v in one layer or three, and two convolutions with batch norms.
constexpr const char* kModel = R"({"seed": 1, "modules": [
  {"path": "fc", "class": "torch.nn.Linear", "parameters": [{"name": "weight", "trained": true, "shape": [32, 12]},
    {"name": "bias", "trained": true, "shape": [32]}]},
  {"path": "proj", "class": "torch.nn.Linear", "parameters": [{"name": "weight", "trained": true, "shape": [12, 32]}]},
  {"path": "other", "class": "torch.nn.Linear", "parameters": [{"name": "weight", "trained": true, "shape": [12, 16]}]},
  {"path": "attn.out", "class": "torch.nn.Linear", "parameters": [{"name": "weight", "trained": true, "shape": [12, 12]}]},
  {"path": "attn.qkv", "class": "torch.nn.Linear", "fused": 3, "parameters": [
    {"name": "weight", "trained": true, "shape": [36, 12]}, {"name": "bias", "trained": true, "shape": [36]}]},
  {"path": "attn.packed", "class": "torch.nn.Linear", "parameters": [
    {"name": "weight", "trained": true, "shape": [36, 12]}]},
  {"path": "half", "class": "torch.nn.Linear", "parameters": [{"name": "weight", "trained": true, "shape": [8, 12]},
    {"name": "bias", "trained": false, "shape": [8]}]},
  {"path": "conv1", "class": "torch.nn.Conv2d", "parameters": [{"name": "weight", "trained": true, "shape": [8, 3, 3, 3]}]},
  {"path": "bn1", "class": "torch.nn.BatchNorm2d", "parameters": [{"name": "weight", "trained": true, "shape": [8]},
    {"name": "bias", "trained": true, "shape": [8]}], "buffers": [{"name": "running_mean", "shape": [8]},
    {"name": "running_var", "shape": [8]}, {"name": "num_batches_tracked", "shape": []}]},
  {"path": "conv2", "class": "torch.nn.Conv2d", "parameters": [{"name": "weight", "trained": true, "shape": [6, 8, 3, 3]}]}
]})";

Compressions planned(const std::string& type, const std::string& shared, const std::string& group) {
  static const capstan_host host = make_host();
  static const PluginIndex plugins = PluginIndex::scan({});
  Registry registry(plugins);
  const std::string params =
      R"({"shared_parameters": {"enabled": true, )" + shared + R"(}, "different_groups": {"g": )" + group + "}}";
  Compressions made;
  made.add(registry.create("test", "compression", type, Json::parse(params), &host));
  made.plan(Json::parse(kModel));
  return made;
}

std::string of(const std::string& modules, const std::string& related = "", const std::string& ratio = "0.5") {
  return R"({"params": {"dense_ratio": )" + ratio + R"(}, "modules": [)" + modules + "]" +
         (related.empty() ? "" : R"(, "related_modules": )" + related) + "}";
}

void refuses(const std::string& type, const std::string& shared, const std::string& group, const char* why) {
  EXPECT_THAT([&] { planned(type, shared, group); }, ThrowsMessage<ConfigError>(HasSubstr(why))) << type << group;
}

TEST(UnitPruning, MasksWeightsBiasesAndRelatedBatchNorms) {
  const Compressions rows = planned("row_pruning", R"("method": "l1")", of("\"fc\"", R"([["proj"]])"));
  EXPECT_TRUE(rows.compresses("fc.weight") && rows.compresses("fc.bias"));
  EXPECT_FALSE(rows.compresses("proj.weight"));  // its columns read zeros
  EXPECT_THAT(rows.report(), ElementsAre("row_pruning g: 1 of 7 modules, 50 % kept, 384 weights"));

  const Compressions channels =
      planned("channel_pruning", R"("method": "topk")", of("\"conv1\"", R"([["conv2", "bn1"]])"));
  EXPECT_TRUE(channels.compresses("bn1.weight") && channels.compresses("bn1.bias"));
  EXPECT_FALSE(channels.compresses("conv2.weight"));
  ASSERT_EQ(channels.trained().size(), 1u);
  EXPECT_EQ(channels.trained()[0]->parameter, "conv1.channel_mask_scores");
  EXPECT_THAT(channels.trained()[0]->shape, ElementsAre(8, 1, 1, 1));
}

TEST(UnitPruning, KnowsWhichLayersHoldQueriesKeysAndValues) {
  const Compressions heads = planned("head_pruning", R"("num_heads": 4)", of("\"attn.out\"", R"([["attn.qkv"]])"));
  EXPECT_THAT(heads.trained()[0]->shape, ElementsAre(1, 4));
  refuses(
      "head_pruning", R"("num_heads": 4)", of("\"attn.out\"", R"([["attn.packed"]])"),
      "'attn.packed', whose weight is [36, 12], has 36 outputs, and 'attn.out', whose weight is [12, 12], needs 12");
}

TEST(UnitPruning, RefusesWhatDoesNotFitTheModel) {
  const std::string l1 = R"("method": "l1")";
  refuses("row_pruning", l1, of("\"fc\"", R"([["other"]])"),
          "related_modules[0]: 'other', whose weight is [12, 16], has 16 inputs, and 'fc', whose weight is [32, 12], "
          "needs 32. Name the module that its rows belong to.");
  refuses("row_pruning", l1, of("\"fc\"", R"([["proj|other"]])"), "finds 2 modules, and 'fc' of modules[0] 1");
  refuses("row_pruning", l1, of("\"fc\"", R"([["nothing"]])"), "finds 0 modules");
  refuses("row_pruning", l1, of("\"half\""), "is trained and its bias is not");
  refuses("row_pruning", l1, of("\"fc\", \"f.\""), "module 'fc' is found here and by");
  refuses("head_pruning", R"("num_heads": 5)", of("\"attn.out\""),
          "num_heads: 5 does not divide the inputs of 'attn.out', whose weight is [12, 12]");
  refuses("head_pruning", R"("num_heads": 4, "method": "l1")", of("\"attn.out\""), "must be topk, got \"l1\"");
  refuses("channel_pruning", l1, of("\"conv1\"", R"([["conv1"]])"), "has 3 inputs");
  for (const char* ratio : {"0", "1.5", "-0.1"}) {
    refuses("row_pruning", l1, of("\"fc\"", "", ratio), "g.params.dense_ratio: must be above 0 and at most 1");
  }
}

TEST(UnitPruning, NamesAllThatDoesNotFitAtOnce) {
  const std::string where = "compression_training.row_pruning.different_groups.g.";
  EXPECT_THAT([&] { planned("row_pruning", R"("method": "l1")", of("\"fc\", \"half\"", R"([["other"]])")); },
              ThrowsMessage<ConfigError>(::testing::StartsWith(
                  where +
                  "modules: the weight of 'half' is trained and its bias is not, so that the bias "
                  "of what is pruned would stay. Train both.\n" +
                  where + "related_modules[0]: 'other', whose weight is [12, 16], has 16 inputs")));
}

TEST(UnitPruning, WarnsOfAnExpressionThatFindsNothing) {
  const Compressions made = planned("row_pruning", R"("method": "l1")", of("\"attention.self\""));
  ASSERT_EQ(made.warnings().size(), 2u);
  EXPECT_THAT(made.warnings()[0], HasSubstr("'attention.self' is found in the path of no module"));
  EXPECT_THAT(made.warnings()[1], HasSubstr("compression_training.row_pruning: acts on no trained module"));
}

}  // namespace
}  // namespace capstan
