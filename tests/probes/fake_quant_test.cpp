#include <gmock/gmock.h>
#include <torch/torch.h>

#include "tests/probes/probe_run.hpp"

namespace capstan {
namespace {

using ::testing::HasSubstr;
using testing::ProbeRun;
using ::testing::ThrowsMessage;

std::string fake_quant(int bits, const std::string& modules = "blocks.") {
  return R"("observers": [{"type": "FakeQuant", "params": {"bits": )" + std::to_string(bits) + R"(, "modules": ")" +
         modules + R"("}}])";
}

std::int64_t distinct(const at::Tensor& tensor) { return std::get<0>(at::_unique(tensor)).numel(); }

at::Tensor rounded(const at::Tensor& master, double levels) {
  const double step = master.abs().max().item<double>() / levels;
  return (master.to(torch::kDouble) / step).round().mul(step).to(torch::kFloat);
}

TEST(FakeQuantProbe, ComputesWithRoundedWeightsAndTrainsTheMasters) {
  ProbeRun run(fake_quant(3));
  EXPECT_LE(distinct(run.parameter("blocks.0.mlp.fc.weight")), 7);
  const at::Tensor before = run.parameter("blocks.0.mlp.fc.weight").clone();

  const auto losses = run.steps(30);

  EXPECT_LT(losses.back(), losses.front() - 0.5);
  EXPECT_LE(distinct(run.parameter("blocks.0.mlp.fc.weight")), 7);
  EXPECT_FALSE(run.parameter("blocks.0.mlp.fc.weight").equal(before));
  EXPECT_GT(distinct(run.parameter("head.weight")), 1000);
  EXPECT_GT(distinct(run.parameter("blocks.0.mlp.fc.bias")), 50);
}

/// The same training by hand: masters beside the model, rounded into it before each forward, their gradient that of the
/// rounded copy.
TEST(FakeQuantProbe, IsTheStraightThroughEstimator) {
  ProbeRun run(fake_quant(8)), model;
  std::vector<at::Tensor> masters, weights;
  std::vector<bool> selected;
  for (const NamedTensor& item : model.engine->model().parameters()) {
    weights.push_back(item.tensor);
    masters.push_back(item.tensor.detach().clone());
    selected.push_back(item.name.starts_with("blocks.") && item.tensor.dim() == 2);
  }
  torch::optim::AdamW adamw(masters, torch::optim::AdamWOptions(0.01).weight_decay(0.1));

  for (int step = 0; step < 10; ++step) {
    for (std::size_t i = 0; i < weights.size(); ++i) {
      weights[i].data().copy_(selected[i] ? rounded(masters[i], 127) : masters[i]);
      weights[i].mutable_grad().reset();
    }
    Batch batch = model.batch(step % 2);
    const at::Tensor loss = model.engine->forward(batch);
    loss.backward();
    for (std::size_t i = 0; i < weights.size(); ++i) masters[i].mutable_grad() = weights[i].grad();
    adamw.step();

    // A weight in the middle between two levels may round to either side.
    EXPECT_NEAR(run.step(), loss.item<double>(), 2e-4) << "step " << step;
  }
}

TEST(FakeQuantProbe, ChangesWhatIsTrained) {
  ProbeRun rounded_run(fake_quant(4)), plain;

  EXPECT_GT(std::abs(rounded_run.steps(30).back() - plain.steps(30).back()), 1e-3);
}

TEST(FakeQuantProbe, IsValidatedByItsManifest) {
  EXPECT_THAT([] { ProbeRun run(fake_quant(1)); }, ThrowsMessage<ConfigError>(HasSubstr("bits")));
}

std::string quantized_weights(const std::string& modules) {
  return R"("compression_training": {"weight_quantization": {"shared_parameters": {"enabled": true,
      "quantize_weight_in_forward": true}, "different_groups": {"wq1": {"params": {"start_bits": 4, "target_bits": 4},
      "modules": [")" +
         modules + R"("]}}}})";
}

TEST(FakeQuantProbe, GoesBesideACompressionOfOtherWeightsAndIsRefusedOnTheSame) {
  ProbeRun run(fake_quant(3, "blocks.0."), quantized_weights("blocks.1.mlp.fc"));
  run.steps(2);
  EXPECT_LE(distinct(run.parameter("blocks.0.mlp.fc.weight")), 7);
  EXPECT_LE(distinct(run.parameter("blocks.1.mlp.fc.weight")), 16);
  EXPECT_GT(distinct(run.parameter("blocks.2.mlp.fc.weight")), 1000);
  EXPECT_THAT([] { ProbeRun(fake_quant(3), quantized_weights("mlp.fc")); },
              ThrowsMessage<ConfigError>("parameter 'blocks.0.mlp.fc.weight': observer 'FakeQuant' transforms it, and "
                                         "compression 'weight_quantization' changes it as well. Leave it out of one of "
                                         "them."));
}

}  // namespace
}  // namespace capstan
