#include <ATen/TensorOperators.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/round.h>
#include <ATen/ops/sign.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <utility>

#include "core/errors.hpp"
#include "tests/plugins/compression/quantized.hpp"

namespace capstan::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

struct Settings {
  int bits = 8;
  const char* type = "symmetric";
  int groups = 1, offset = 0;
  const char* modules = R"("fc")";
};

std::string section(const Settings& settings, const std::string& more_groups = "") {
  const std::string bits = std::to_string(settings.bits);
  return R"({"shared_parameters": {"enabled": true, "quantize_weight_in_forward": true, "schedule_offset": )" +
         std::to_string(settings.offset) + R"(, "quantize_groups": )" + std::to_string(settings.groups) +
         R"(, "quantization_type": ")" + settings.type +
         R"("}, "different_groups": {"wq1": {"params": {"start_bits": 8, "target_bits": )" + bits +
         R"(}, "modules": [)" + settings.modules + "]}" + more_groups + "}}";
}

Compressions quantizer(const Settings& settings, const std::vector<Layer>& layers,
                       const std::vector<std::string>& corrections = {}) {
  return planned(section(settings), "weight_quantization", layers, corrections);
}

Layer linear(std::vector<std::int64_t> shape, const std::string& path = "fc") {
  return {path, "torch.nn.Linear", std::move(shape)};
}

/// The formulas of DeepSpeed's compression library, by LibTorch's own operators.
at::Tensor expected(const at::Tensor& weight, int bits, bool symmetric, std::int64_t groups) {
  const at::Tensor x = weight.reshape({groups, -1});
  const double levels = std::ldexp(1.0, bits);
  if (bits == 1) return (x.sign() * x.abs().mean({1}, true)).reshape(weight.sizes());
  if (bits == 2) {
    // In double precision: the last bits of a float32 mean depend on where the values lie in memory.
    const at::Tensor above = x.abs() > (x.abs().to(at::kDouble).mean({1}, true) * 0.7).to(at::kFloat);
    const at::Tensor size = (x.abs() * above).sum({1}, true) / above.sum({1}, true);
    return (x.sign() * size * above).reshape(weight.sizes());
  }
  if (symmetric) {
    const at::Tensor scale = x.abs().amax({1}, true) * 2 / levels;
    return (at::round(x / scale).clamp(-levels / 2, levels / 2 - 1) * scale).reshape(weight.sizes());
  }
  const at::Tensor low = x.amin({1}, true), scale = (x.amax({1}, true) - low) / levels;
  const at::Tensor zero = at::round(low / scale) * scale;
  return (at::round((x - zero) / scale).clamp(0, levels - 1) * scale + zero).reshape(weight.sizes());
}

struct Golden {
  int bits;
  const char* type;
  std::vector<float> values;
};

TEST(WeightQuantization, GivesTheGoldenValues) {
  const Layer layer = linear({1, 5});
  const at::Tensor weight = at::tensor({-1.0f, -0.3f, 0.0f, 0.2f, 0.75f});
  for (const Golden& golden : {
           Golden{8, "symmetric", {-1.0f, -0.296875f, 0.0f, 0.203125f, 0.75f}},
           Golden{4, "symmetric", {-1.0f, -0.25f, 0.0f, 0.25f, 0.75f}},
           Golden{8, "asymmetric", {-0.998046875f, -0.30078125f, 0.0f, 0.1982421875f, 0.7451171875f}},
           Golden{4, "asymmetric", {-0.984375f, -0.328125f, 0.0f, 0.21875f, 0.65625f}},
           Golden{2, "symmetric", {-0.875f, 0.0f, 0.0f, 0.0f, 0.875f}},
           Golden{1, "symmetric", {-0.45f, -0.45f, 0.0f, 0.45f, 0.45f}},
       }) {
    Compressions made = quantizer({golden.bits, golden.type}, {layer});
    EXPECT_TRUE(at::equal(compressed(made, layer, weight).view({-1}), at::tensor(golden.values)))
        << golden.bits << " " << golden.type << compressed(made, layer, weight);
  }
}

TEST(WeightQuantization, IsTheFormulaForEveryGroup) {
  const Layer layer = linear({96, 1024});  // three blocks of 32,768
  const at::Tensor weight = at::randn(layer.shape) * 0.1 + 0.02;
  for (const int bits : {1, 2, 3, 4, 5, 8, 12, 16}) {
    for (const char* type : {"symmetric", "asymmetric"}) {
      const bool symmetric = *type == 's';
      if (bits < 3 && !symmetric) continue;
      for (const int groups : {1, 2, 96, 96 * 32}) {
        Compressions made = quantizer({bits, type, groups}, {layer});
        const at::Tensor found = compressed(made, layer, weight), wanted = expected(weight, bits, symmetric, groups);
        EXPECT_LE((found - wanted).abs().max().item<float>(), 1e-6f * weight.abs().max().item<float>())
            << bits << " " << type << " " << groups;
      }
    }
  }
}

TEST(WeightQuantization, LeavesGroupsOfOneValueAsTheyAre) {
  const Layer layer = linear({3, 8});
  const at::Tensor weight = at::cat({at::zeros({8}), at::full({8}, 0.3f), at::full({8}, -0.7f)}).view({3, 8});
  for (const int bits : {1, 2, 4, 8}) {
    Compressions made = quantizer({bits, "symmetric", 3}, {layer});
    const at::Tensor found = compressed(made, layer, weight);
    EXPECT_TRUE(at::equal(found[0], weight[0])) << bits;
    EXPECT_TRUE(found.isfinite().all().item<bool>()) << bits;
  }
  Compressions made = quantizer({4, "asymmetric", 3}, {layer});
  EXPECT_TRUE(at::equal(compressed(made, layer, weight), weight));
  EXPECT_TRUE(at::equal(decoded(made.encode("fc.weight", {3, 8}, weight.view({-1}), 0)), weight.view({-1})));
}

TEST(WeightQuantization, MakesAGroupThatIsNotFiniteNaNAsAWhole) {
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN(), kInfinity = std::numeric_limits<float>::infinity();
  const Layer layer = linear({3, 40'005});  // groups end within blocks and within vectors
  const at::Tensor whole = at::randn(layer.shape);
  for (const auto& [bits, type] : {std::pair{1, "symmetric"},
                                   {2, "symmetric"},
                                   {8, "symmetric"},
                                   {24, "symmetric"},
                                   {4, "asymmetric"},
                                   {24, "asymmetric"}}) {
    Compressions made = quantizer({bits, type, 3}, {layer});
    const at::Tensor wanted = compressed(made, layer, whole);
    for (const float lost : {kNaN, kInfinity, -kInfinity}) {
      for (const std::int64_t at : {17, 40'003, 40'004}) {  // the last is of the elements behind whole vectors
        const at::Tensor weight = whole.clone();
        weight[1][at] = lost;
        const at::Tensor found = compressed(made, layer, weight);
        EXPECT_TRUE(found[1].isnan().all().item<bool>()) << bits << type << lost << at;
        EXPECT_TRUE(at::equal(found[0], wanted[0]) && at::equal(found[2], wanted[2])) << bits << type << lost << at;
        if (bits > 8) continue;
        EXPECT_THAT([&] { made.encode("fc.weight", layer.shape, weight.view({-1}), 0); },
                    ThrowsMessage<RuntimeFault>("parameter 'fc.weight': element " + std::to_string(40'005 + at) +
                                                " is " + (std::isnan(lost) ? "NaN" : "infinite") +
                                                ", and no code stands for it. Export a checkpoint of before the "
                                                "values were lost, or without --compressed."));
      }
    }
  }
}

TEST(WeightQuantization, BeginsAtItsOffset) {
  const Layer layer = linear({4, 4});
  const at::Tensor weight = at::randn({4, 4});
  for (const int offset : {0, 1, 7}) {
    Compressions made = quantizer({4, "symmetric", 1, offset}, {layer});
    for (const int updates : {0, 1, 6, 7, 8}) {
      EXPECT_EQ(at::equal(compressed(made, layer, weight, updates), weight), updates < offset) << offset << updates;
    }
  }
}

TEST(WeightQuantization, HasAGroupForEachRowOfAnEmbedding) {
  const Layer layer{"emb", "torch.nn.Embedding", {12, 16}};
  const at::Tensor weight = at::randn({12, 16});
  Compressions made = quantizer({8, "symmetric", 1, 0, R"("emb")"}, {layer});
  EXPECT_TRUE(at::equal(compressed(made, layer, weight), expected(weight, 8, true, 12)));
  // Without `modules` it is left alone.
  EXPECT_FALSE(quantizer({8, "symmetric", 1, 0, R"("*")"}, {layer, linear({4, 4})}).compresses("emb.weight"));
}

TEST(WeightQuantization, GivesCodesOfTheVeryValuesThatAreTrained) {
  const Layer layer = linear({64, 1024});
  const at::Tensor weight = at::randn(layer.shape) * 0.1 + 0.02;
  for (const int bits : {1, 2, 3, 4, 8}) {
    for (const char* type : {"symmetric", "asymmetric"}) {
      if (bits < 3 && *type == 'a') continue;
      for (const bool half : {false, true}) {
        Compressions made = quantizer({bits, type, 64 * 32}, {layer},
                                      half ? std::vector<std::string>{"fp16-scales"} : std::vector<std::string>{});
        const WeightCodes codes = made.encode("fc.weight", layer.shape, weight.view({-1}), 0);
        EXPECT_EQ(codes.bits, bits);
        EXPECT_TRUE(at::equal(decoded(codes).view(layer.shape), compressed(made, layer, weight))) << bits << type;
        EXPECT_GE(codes.codes.min().item<int>(), bits == 1 ? -1 : -(1 << (bits - 1)));
        EXPECT_LE(codes.codes.max().item<int>(), bits == 1 ? 1 : (1 << (bits - 1)) - 1);
        const at::Tensor scales = codes.scales;
        EXPECT_EQ(at::equal(scales.to(at::kHalf).to(at::kFloat), scales), half);
        EXPECT_EQ(codes.has_zero_points, *type == 'a');
      }
    }
  }
  const Compressions wide = quantizer({9, "symmetric", 1}, {layer});
  EXPECT_THAT(
      [&] { wide.encode("fc.weight", layer.shape, weight.view({-1}), 0); },
      ThrowsMessage<RuntimeFault>(HasSubstr("parameter 'fc.weight': no compression that acts after 0 updates")));
}

TEST(WeightQuantization, SaysWhatEachGroupActsOn) {
  const std::vector<Layer> layers = {linear({1000, 1500}, "blocks.0.fc"),
                                     linear({1000, 1500}, "blocks.1.fc"),
                                     linear({10, 10}, "head"),
                                     {"norm", "torch.nn.LayerNorm", {10}},
                                     {"blocks", "torch.nn.ModuleList", {}}};
  Compressions made = quantizer({8, "symmetric", 1, 0, R"("blocks")"}, layers);
  EXPECT_THAT(made.report(), ElementsAre("weight_quantization wq1: 2 of 3 modules, 8 bits, 3.0 M weights"));
  EXPECT_THAT(made.warnings(), ElementsAre());
  EXPECT_TRUE(made.compresses("blocks.1.fc.weight"));
  EXPECT_FALSE(made.compresses("head.weight"));
}

TEST(WeightQuantization, WarnsOfExpressionsThatFindNothing) {
  const std::vector<Layer> layers = {linear({4, 4}, "blocks.0.mlp.fc"),
                                     linear({4, 4}, "blocks.0.attn.qkv"),
                                     {"head", "torch.nn.Linear", {}},
                                     {"cold", "torch.nn.Linear", {4, 4}, false}};
  Compressions made = quantizer({8, "symmetric", 1, 0, R"("intermediate.dense", "qkv", "head", "cold")"}, layers);
  const std::string where = "compression_training.weight_quantization.different_groups.wq1.modules";
  EXPECT_THAT(made.warnings(),
              ElementsAre(HasSubstr(where + "[0]: 'intermediate.dense' is found in the path of no module that the "
                                            "method fits. Nearest: '"),
                          where + "[2]: 'head' is found in 'head', whose weight another module shares and has. Name "
                                  "that module.",
                          HasSubstr("module 'cold' is left as it is: its weight is not trained.")));
}

TEST(WeightQuantization, NamesAllThatDoesNotFitTheModelAtOnce) {
  const std::vector<Layer> layers = {linear({4, 6}), linear({4, 5}, "rest"), linear({7, 5}, "head")};
  const std::string key =
      "compression_training.weight_quantization.shared_parameters.quantize_groups: 7 does not "
      "divide the weight of '";
  EXPECT_THAT(
      [&] {
        quantizer({8, "symmetric", 7, 0, R"("fc", "rest", "head")"}, layers);
      },
      ThrowsMessage<ConfigError>(key + "fc', which has 24 elements; 6 and 8 do.\n" + key +
                                 "rest', which has 20 elements; 5 and 10 do."));
}

TEST(WeightQuantization, IsMarkedWhereNoGroupActsOnAnything) {
  const Compressions made = quantizer({8, "symmetric", 1, 0, R"("attention.self")"}, {linear({4, 4}, "blocks.0.fc")});
  EXPECT_THAT(made.warnings(), ElementsAre(HasSubstr("'attention.self' is found in the path of no module"),
                                           HasSubstr("compression_training.weight_quantization: acts on no trained "
                                                     "module of this model")));
}

struct Refused {
  Settings settings;
  const char* says;
};

TEST(WeightQuantization, RefusesWhatCannotBeWithAReason) {
  const std::vector<Layer> layers = {linear({4, 6}), {"conv", "torch.nn.Conv2d", {4, 3, 3, 3}}};
  for (const Refused& refused : {
           Refused{{0}, "different_groups.wq1.params.target_bits: must be 1 to 32, got 0."},
           Refused{{33}, "different_groups.wq1.params.target_bits: must be 1 to 32, got 33."},
           Refused{{2, "asymmetric"}, "2 bits need quantization_type \"symmetric\"."},
           Refused{{8, "symmetric", 5},
                   "shared_parameters.quantize_groups: 5 does not divide the weight of 'fc', which has 24 elements; 4 "
                   "and 6 do."},
           Refused{{8, "symmetric", 100}, "which has 24 elements; 24 does."},
           Refused{{8, "symmetric", 1, 0, R"("f[c")"}, "modules[0]: 'f[c' is not a regular expression"},
           Refused{{8, "symmetric", 1, 0, R"("fc", "^f")"},
                   "modules[1]: module 'fc' is found here and by compression_training.weight_quantization."
                   "different_groups.wq1.modules[0]."},
           Refused{{3, "symmetric", 1, 0, R"("conv")"}, "convolutions need 4 bits or more, got 3, and 'conv' is one."},
       }) {
    EXPECT_THAT([&] { quantizer(refused.settings, layers); }, ThrowsMessage<ConfigError>(HasSubstr(refused.says)))
        << refused.says;
  }
}

}  // namespace
}  // namespace capstan::testing
