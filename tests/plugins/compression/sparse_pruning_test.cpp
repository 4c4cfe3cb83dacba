// snip_momentum by hand, and what sparse pruning refuses.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "core/compression/compressions.hpp"
#include "core/errors.hpp"
#include "core/registry/host.hpp"
#include "core/registry/plugin_call.hpp"

namespace capstan {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

struct Layer {
  std::string path;
  std::vector<std::int64_t> shape;
};

/// A host whose functions for pieces are those of the compressions that it was lent to.
struct LentHost {
  Compressions compressions;
  capstan_host host = make_host();

  LentHost() {
    host.ctx = this;
    host.select_largest = [](void* ctx, const capstan_tensor* parts, const std::uint32_t* sets, std::size_t count,
                             const std::uint64_t* k, std::size_t set_count, float* thresholds,
                             const capstan_tensor* masks, capstan_error* error) {
      return guarded(error, [&] { of(ctx).select_largest(parts, sets, count, k, set_count, thresholds, masks); });
    };
    host.gather_piece = [](void* ctx, const capstan_compressed* piece, capstan_tensor part, capstan_tensor whole,
                           capstan_error* error) {
      return guarded(error, [&] {
        of(ctx).gather(*piece, *reinterpret_cast<at::Tensor*>(part), *reinterpret_cast<at::Tensor*>(whole));
      });
    };
    host.all_reduce_sum = [](void*, capstan_tensor, capstan_error*) { return CAPSTAN_OK; };
  }
  static const PieceRanks& of(void* ctx) { return static_cast<LentHost*>(ctx)->compressions.piece_ranks(); }
};

/// Sparse pruning of linear layers and convolutions, which is shown gradients without an engine.
class Pruned {
 public:
  /// `fills`: false for plans alone, as scores that are trained have no place here.
  Pruned(const std::string& shared, const std::vector<Layer>& layers, const std::string& groups = "{}",
         bool fills = true) {
    static const PluginIndex plugins = PluginIndex::scan({});
    Registry registry(plugins);
    const std::string params =
        R"({"shared_parameters": {"enabled": true, )" + shared + R"(}, "different_groups": )" + groups + "}";
    lent_.compressions.add(registry.create("test", "compression", "sparse_pruning", Json::parse(params), &lent_.host));
    Json modules = Json::object();
    modules["modules"] = Json::array();
    for (const Layer& layer : layers) modules["modules"].push_back(module(layer));
    modules["seed"] = 1;
    lent_.compressions.plan(modules);
    for (const Layer& layer : layers) {
      const std::int64_t numel = c10::multiply_integers(layer.shape);
      const at::Tensor weight = at::ones({numel});
      parts_.parameters.push_back(
          {0, layer.path + ".weight", layer.shape, {0, numel}, {}, weight, at::empty_like(weight)});
    }
    if (fills) fill(0, true);
  }

  void fill(std::int64_t updates, bool fresh = false) {
    lent_.compressions.fill("test", parts_, updates, fresh, nullptr);
  }
  /// An update whose gradients are these, which leaves the weights as they were.
  void update(const std::vector<at::Tensor>& gradients, std::int64_t updates, double grad_scale = 1) {
    for (std::size_t i = 0; i < gradients.size(); ++i) parts_.parameters[i].gradient = gradients[i].reshape({-1});
    lent_.compressions.before_update("test", parts_, grad_scale, updates - 1, nullptr);
    for (CompressedPart& part : parts_.parameters) part.gradient = at::Tensor();
    fill(updates);
  }
  at::Tensor mask(std::size_t layer = 0) const {
    const CompressedPart& part = parts_.parameters[layer];
    return part.compute.ne(0).to(at::kLong).view(part.shape);
  }
  at::Tensor master(std::size_t layer = 0) const { return parts_.parameters[layer].master; }
  const Compressions& compressions() const { return lent_.compressions; }

 private:
  static Json module(const Layer& layer) {
    Json one = Json::object(), weight = Json::object();
    one["path"] = layer.path;
    one["class"] = layer.shape.size() == 4 ? "torch.nn.Conv2d" : layer.shape.size() == 2 ? "torch.nn.Linear" : "Other";
    weight["name"] = "weight";
    weight["shape"] = Json(Json::Array(layer.shape.begin(), layer.shape.end()));
    weight["trained"] = true;
    one["parameters"] = Json(Json::Array{weight});
    return one;
  }

  LentHost lent_;
  CompressedParts parts_;
};

std::string snip(const std::string& more) { return R"("method": "snip_momentum", )" + more; }

/// Behind the layers that are looked at: the last one would be taken for the classifier.
const Layer kLast = {"out", {2, 2}};

TEST(SnipMomentum, PrunesMoreAndMoreAtItsInstants) {
  Pruned pruned(snip(R"("schedule_offset": 30, "schedule_offset_end": 90, "schedule_offset_stride": 15,
    "dense_ratio": 0.4, "block_pattern": "1x1")"),
                {{"fc", {4, 6}}, kLast});
  const at::Tensor gradient = at::arange(1, 25).to(at::kFloat).view({4, 6});
  // r = 0, .2047293, .3675445, .4970266, .6 of 24
  const std::map<std::int64_t, std::int64_t> expected = {{30, 0}, {45, 4}, {60, 8}, {75, 11}, {90, 14}};
  std::int64_t zeros = 0;
  for (std::int64_t update = 1; update <= 100; ++update) {
    pruned.update({gradient}, update);
    if (expected.contains(update)) zeros = expected.at(update);
    EXPECT_EQ(pruned.mask().eq(0).sum().item<std::int64_t>(), zeros) << update;
  }
  EXPECT_EQ(pruned.mask().view({-1}).narrow(0, 0, 14).sum().item<std::int64_t>(), 0);  // those with the least score
  EXPECT_TRUE(at::equal(pruned.master().view({4, 6}), pruned.mask().to(at::kFloat)));
}

TEST(SnipMomentum, AddsUpScoresWithMomentum) {
  // .9 * 1 + .1 against .9 * .5 + .6: the second update decides, the first one's share fades.
  Pruned pruned(snip(R"("schedule_offset": 2, "dense_ratio": 0.5, "block_pattern": "1x1")"), {{"fc", {1, 2}}, kLast});
  pruned.update({at::tensor({1.0f, 0.5f}).view({1, 2})}, 1);
  pruned.update({at::tensor({0.1f, -0.6f}).view({1, 2}) * 8}, 2, 1.0 / 8);
  EXPECT_TRUE(at::equal(pruned.mask(), at::tensor({0, 1}, at::kLong).view({1, 2})));
}

at::Tensor rows(const std::vector<std::vector<float>>& values) {
  std::vector<float> flat;
  for (const auto& row : values) flat.insert(flat.end(), row.begin(), row.end());
  return at::tensor(flat).view({static_cast<std::int64_t>(values.size()), -1});
}

struct Pattern {
  const char* pattern;
  double dense;
  std::vector<std::vector<float>> expected;
};

TEST(SnipMomentum, PrunesBlocksByTheMeansOfTheirScores) {
  const at::Tensor gradient = rows({{9, 1, 1, 8, 2, 5}, {9, 1, 1, 1, 2, 5}, {9, 6, 1, 1, 2, 5}, {9, 1, 7, 1, 2, 5}});
  const std::vector<Pattern> cases = {
      // means of columns 9, 2.25, 2.5, 2.75, 2, 5
      {"4x1", 0.5, {{1, 0, 0, 1, 0, 1}, {1, 0, 0, 1, 0, 1}, {1, 0, 0, 1, 0, 1}, {1, 0, 0, 1, 0, 1}}},
      {"channelx1", 0.5, {{1, 0, 0, 1, 0, 1}, {1, 0, 0, 1, 0, 1}, {1, 0, 0, 1, 0, 1}, {1, 0, 0, 1, 0, 1}}},
      // sums of rows 26, 19, 24, 25
      {"1xchannel", 0.5, {{1, 1, 1, 1, 1, 1}, {0, 0, 0, 0, 0, 0}, {0, 0, 0, 0, 0, 0}, {1, 1, 1, 1, 1, 1}}},
      // sums of 2 x 2: 20, 11, 14 and 25, 10, 14
      {"2x2", 0.66, {{1, 1, 0, 0, 1, 1}, {1, 1, 0, 0, 1, 1}, {1, 1, 0, 0, 1, 1}, {1, 1, 0, 0, 1, 1}}},
      // Of three in a row the smallest goes, first among equals, in 7 of 8 groups: (8, 2, 5) ranks highest.
      {"1:3", 0.67, {{1, 0, 1, 1, 1, 1}, {1, 0, 1, 0, 1, 1}, {1, 1, 0, 0, 1, 1}, {1, 0, 1, 0, 1, 1}}},
  };
  for (const Pattern& one : cases) {
    Pruned pruned(snip(R"("schedule_offset": 1, "dense_ratio": )" + std::to_string(one.dense) +
                       R"(, "block_pattern": ")" + one.pattern + "\""),
                  {{"fc", {4, 6}}, kLast});
    pruned.update({gradient}, 1);
    EXPECT_TRUE(at::equal(pruned.mask().to(at::kFloat), rows(one.expected))) << one.pattern << pruned.mask();
  }
}

TEST(SnipMomentum, SeesConvolutionsAsRowsOfKernelPositionsAndChannels) {
  // [out 2, in 2, 1, 2]: blocks of 1 x 2 hold both channels of one kernel position.
  Pruned pruned(snip(R"("schedule_offset": 1, "dense_ratio": 0.5, "block_pattern": "1x2")"),
                {{"conv", {2, 2, 1, 2}}, kLast});
  const at::Tensor gradient = at::tensor({1.0f, 5.0f, 2.0f, 1.0f, 9.0f, 1.0f, 1.0f, 1.0f}).view({2, 2, 1, 2});
  pruned.update({gradient}, 1);  // blocks: 1 + 2, 5 + 1 | 9 + 1, 1 + 1
  EXPECT_TRUE(at::equal(pruned.mask(), at::tensor({0, 1, 0, 1, 1, 0, 1, 0}, at::kLong).view({2, 2, 1, 2})));
}

TEST(SnipMomentum, RanksAllLayersTogetherAndLeavesNoneWithLessThanTwoPercent) {
  // The second layer has the smaller scores by far, and may lose 98 of its 100; the first gives the rest of 120.
  Pruned pruned(snip(R"("schedule_offset": 1, "dense_ratio": 0.4, "block_pattern": "1x1")"),
                {{"fc1", {10, 10}}, {"fc2", {10, 10}}, kLast});
  const at::Tensor large = at::arange(1001, 1101).to(at::kFloat).view({10, 10}), small = large - 1000;
  pruned.update({large, small}, 1);
  EXPECT_EQ(pruned.mask(1).eq(0).sum().item<std::int64_t>(), 98);
  EXPECT_EQ(pruned.mask(0).eq(0).sum().item<std::int64_t>(), 22);
}

TEST(SnipMomentum, LeavesOutTheClassifierWhatIsExcludedAndWhatBlocksDoNotFill) {
  Pruned pruned(snip(R"("schedule_offset": 1, "block_pattern": "4x1", "excluded_modules": ["attn"])"),
                {{"fc", {4, 6}}, {"attn.q", {4, 6}}, {"odd", {5, 6}}, {"out", {4, 4}}});
  EXPECT_TRUE(pruned.compressions().compresses("fc.weight"));
  for (const char* name : {"attn.q.weight", "odd.weight", "out.weight"}) {
    EXPECT_FALSE(pruned.compressions().compresses(name)) << name;
  }
  ASSERT_EQ(pruned.compressions().warnings().size(), 1u);
  EXPECT_THAT(pruned.compressions().warnings().front(), HasSubstr("the weight of 'odd' does not divide"));
  EXPECT_THAT(pruned.compressions().report().front(), HasSubstr("1 of 4 modules, 10 % kept"));
}

TEST(SnipMomentum, WaitsForTheFirstUpdateWhereItIsToPruneOnceAtTheStart) {
  Pruned pruned(snip(R"("schedule_offset": 0, "dense_ratio": 0.5, "block_pattern": "1x1")"), {{"fc", {2, 2}}, kLast});
  EXPECT_EQ(pruned.mask().sum().item<std::int64_t>(), 4);
  pruned.update({at::tensor({4.0f, 3.0f, 2.0f, 1.0f}).view({2, 2})}, 1);
  EXPECT_TRUE(at::equal(pruned.mask(), at::tensor({1, 1, 0, 0}, at::kLong).view({2, 2})));
}

TEST(SparsePruning, LeavesExcludedModulesWholeWhateverTheMethod) {
  const std::string groups = R"({"g": {"params": {"dense_ratio": 0.5}, "modules": ["fc", "attn"]}})";
  for (const char* method : {"l1", "topk"}) {
    Pruned pruned(R"("method": ")" + std::string(method) + R"(", "excluded_modules": ["^attn", "nowhere"])",
                  {{"fc", {4, 6}}, {"attn.q", {4, 6}}, kLast}, groups, std::string_view(method) == "l1");
    EXPECT_TRUE(pruned.compressions().compresses("fc.weight")) << method;
    EXPECT_FALSE(pruned.compressions().compresses("attn.q.weight")) << method;
    EXPECT_THAT(pruned.compressions().report().front(), HasSubstr("sparse_pruning g: 1 of 3 modules, 50 % kept"));
    EXPECT_THAT(
        pruned.compressions().warnings(),
        ElementsAre("compression_training.sparse_pruning.shared_parameters.excluded_modules: 'nowhere' is found "
                    "in the path of no module that has a weight."));
  }
}

TEST(SparsePruning, RefusesWhatItCannotDo) {
  const auto refuses = [](const std::string& shared, const std::string& groups, const char* why) {
    EXPECT_THAT([&] { Pruned(shared, {{"fc", {4, 6}}}, groups); }, ThrowsMessage<std::exception>(HasSubstr(why)));
  };
  for (const char* pattern : {"0x4", "4:2", "4", "x", "2:2", "channelx2", "-1x4", "4x"}) {
    refuses(snip(std::string(R"("block_pattern": ")") + pattern + "\""), "{}", "block_pattern: must be NxM");
  }
  refuses(snip(R"("block_pattern": "2:4", "dense_ratio": 0.4)"), "{}", "Keep at least 0.5");
  for (const std::string& shared : {std::string(R"("method": "l1")"), snip(R"("dense_ratio": 0.5)")}) {
    refuses(shared + R"(, "excluded_modules": ["f[c"])", R"({"g": {"params": {"dense_ratio": 0.5}}})",
            "shared_parameters.excluded_modules: 'f[c' is no");
  }
  refuses(snip(R"("schedule_offset": 5, "schedule_offset_end": 4)"), "{}", "is below schedule_offset, 5");
  for (const char* ratio : {"0", "1.5", "-1"}) {
    refuses(R"("method": "l1")", std::string(R"({"g": {"params": {"dense_ratio": )") + ratio + "}}}",
            "different_groups.g.params.dense_ratio: must be above 0 and at most 1");
  }
}

}  // namespace
}  // namespace capstan
