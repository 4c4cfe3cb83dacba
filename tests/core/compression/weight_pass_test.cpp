// What compressions make of one part, without an engine.
#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/round.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "core/compression/compressions.hpp"
#include "core/registry/host.hpp"

namespace capstan {
namespace {

constexpr std::int64_t kRows = 14, kColumns = 50'000;  // more than a 16-bit copy is made of at a time

/// The compressions of these types and params, in this order, planned for one linear layer "fc".
Compressions planned(const std::vector<std::pair<const char*, std::string>>& chosen) {
  static const capstan_host host = make_host();
  setenv("CAPSTAN_PLUGIN_PATH", CAPSTAN_TEST_BUILD_DIR "/tests/compression_plugins", 1);
  Registry registry(PluginIndex::scan());
  Compressions made;
  for (const auto& [type, params] : chosen) {
    made.add(registry.create("test", "compression", type, Json::parse(params), &host));
  }
  made.plan(Json::parse(R"({"seed": 1, "modules": [{"path": "fc", "class": "torch.nn.Linear", "parameters": [
    {"name": "weight", "trained": true, "shape": [)" +
                        std::to_string(kRows) + ", " + std::to_string(kColumns) + "]}]}]}"));
  return made;
}

std::string eight_bits(int groups) {
  return R"({"shared_parameters": {"enabled": true, "quantize_weight_in_forward": true, "quantize_groups": )" +
         std::to_string(groups) + R"(}, "different_groups": {"all": {"modules": ["fc"],
    "params": {"start_bits": 8, "target_bits": 8}}}, "corrections": []})";
}

at::Tensor filled(Compressions compressions, const at::Tensor& master, at::ScalarType dtype) {
  CompressedParts all;
  std::vector<CompressedPart>& parts = all.parameters;
  parts.resize(1);
  parts[0].name = "fc.weight";
  parts[0].shape = {kRows, kColumns};
  parts[0].range = {0, master.numel()};
  parts[0].master = master.view({-1});
  parts[0].compute = at::empty({master.numel()}, dtype);
  compressions.fill("test", all, 0, true, nullptr);
  return parts[0].compute.view(master.sizes());
}

/// Rows of a tensor on the grid of 8 bits, by LibTorch's own operators.
at::Tensor on_eight_bits(const at::Tensor& rows) {
  const at::Tensor scale = rows.abs().amax({1}, true) * 2 / 256;
  return at::round(rows / scale).clamp(-128, 127) * scale;
}

/// Rows as test_grid rounds them: to multiples of a share of their largest magnitude.
at::Tensor on_shares(const at::Tensor& rows, double share) {
  const at::Tensor step = (rows.abs().amax({1}, true).to(at::kDouble) * share).to(at::kFloat);
  return at::round(rows / step) * step;
}

at::Tensor random_weight() {
  at::manual_seed(3);
  // The rows differ in size, so that each has a scale of its own.
  const at::Tensor weight = at::randn({kRows, kColumns});
  for (std::int64_t row = 0; row < kRows; ++row) weight[row] *= static_cast<double>(row + 1);
  return weight;
}

TEST(WeightPass, MakesCopiesOfSixteenBitsOfTheGroupsOfEachRun) {
  const at::Tensor weight = random_weight();
  const auto compressions = [] { return planned({{"weight_quantization", eight_bits(kRows)}}); };
  EXPECT_TRUE(at::equal(filled(compressions(), weight, at::kFloat), on_eight_bits(weight)));
  EXPECT_TRUE(at::equal(filled(compressions(), weight, at::kBFloat16), on_eight_bits(weight).to(at::kBFloat16)));
}

TEST(WeightPass, GoesInTheOrderOfTheManifestsWhateverTheConfigurationListsFirst) {
  const at::Tensor weight = random_weight();
  const std::pair<const char*, std::string> first = {"weight_quantization", eight_bits(kRows)};  // order 10
  const std::pair<const char*, std::string> then = {
      // order 50
      "test_grid", R"({"groups": {"fc.weight": 0}, "share": 0.003, "mean_share": 0.0, "from": 0, "answer": ""})"};
  const at::Tensor expected = on_shares(on_eight_bits(weight), 0.003);
  EXPECT_FALSE(at::equal(expected, on_eight_bits(on_shares(weight, 0.003))));
  EXPECT_TRUE(at::equal(filled(planned({first, then}), weight, at::kFloat), expected));
  EXPECT_TRUE(at::equal(filled(planned({then, first}), weight, at::kFloat), expected));
}

}  // namespace
}  // namespace capstan
