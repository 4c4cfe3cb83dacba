// Heads in an engine: capstan.run.loss_chunk beside everything else that an engine does.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <capstan/capstan.hpp>
#include <fstream>

#include "capstan/linear_cross_entropy.hpp"
#include "tests/core/data/temporary_folder.hpp"
#include "tests/probes/probe_run.hpp"
#include "tests/support/counting_allocator.hpp"
#include "tests/support/ranks.hpp"

namespace capstan {
namespace {

using testing::ProbeRun;

constexpr const char *kAll = R"("run": {"loss_chunk": 0})", *kChunks = R"("run": {"loss_chunk": 40000})";
constexpr const char* kShape = R"("layers": 2, "d": 32, "heads": 2, "seq": 50)";
constexpr const char* kTied = R"("layers": 2, "d": 32, "heads": 2, "seq": 50, "tied_head": true)";

std::vector<double> gpt_losses(const std::string& capstan, const std::string& members = "",
                               const std::string& shape = kShape) {
  return ProbeRun(capstan, members, shape).steps(4);
}

void expect_losses_near(const std::vector<double>& found, const std::vector<double>& expected, double tolerance) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], tolerance) << i;
}

TEST(HeadInEngine, TrainsInChunksAsWithAllLogits) {
  for (const char* shape : {kShape, kTied}) {
    expect_losses_near(gpt_losses(kChunks, "", shape), gpt_losses(kAll, "", shape), 2e-6);
  }
}

TEST(HeadInEngine, TrainsInHalfPrecisionToo) {
  const auto full = gpt_losses(kAll);
  for (const char* precision :
       {R"("bf16": {"enabled": true})", R"("fp16": {"enabled": true, "initial_scale_power": 12})",
        R"("torch_autocast": {"enabled": true, "dtype": "bfloat16"})"}) {
    SCOPED_TRACE(precision);
    expect_losses_near(gpt_losses(kChunks, precision), gpt_losses(kAll, precision), 0.02);
    EXPECT_NEAR(gpt_losses(kChunks, precision).back(), full.back(), 0.05);
  }
}

TEST(HeadInEngine, TrainsTheSameAtEveryStage) {
  test::expect_on_ranks(2, [](Communicator& communicator) {
    const std::shared_ptr<Communicator> ranks(&communicator, [](Communicator*) {});
    for (const char* shape : {kShape, kTied}) {
      std::vector<std::vector<double>> losses;
      for (const int stage : {0, 1, 2, 3}) {
        ProbeRun run(kChunks,
                     R"("zero_optimization": {"stage": )" + std::to_string(stage) +
                         R"(, "stage3_param_persistence_threshold": 0})",
                     shape, ranks);
        losses.push_back(run.steps(3));
      }
      for (std::size_t stage = 1; stage < losses.size(); ++stage) EXPECT_EQ(losses[stage], losses[0]) << stage;
    }
  });
}

// All logits, and their probabilities, take 1.6 MB each.
TEST(HeadInEngine, EvaluatesInChunks) {
  double loss = 0;
  const auto peak = [&](const char* capstan) {
    ProbeRun run(capstan, "", std::string(kShape) + R"(, "vocab": 2048)");
    const testing::CountingAllocator counting;
    const std::int64_t before = testing::CountingAllocator::living;
    loss = run.engine->eval_batch([&] { return run.batch(0); }, 1);
    return testing::CountingAllocator::peak - before;
  };
  const std::int64_t of_all = peak(kAll);
  const double expected = loss;
  EXPECT_LT(peak(kChunks), of_all - 2'000'000);
  EXPECT_NEAR(loss, expected, 1e-6);
}

TEST(HeadInEngine, TrainsInTheChunksThatTheConfigurationSays) {
  for (const auto& [capstan, chunks] : {std::pair(kChunks, true), std::pair(kAll, false), std::pair("", false)}) {
    ProbeRun run(capstan, "", kShape);
    Batch batch = run.batch(0);
    const at::Tensor loss = run.engine->forward(batch);
    EXPECT_EQ(loss.grad_fn()->name().find("LinearCrossEntropy") != std::string::npos, chunks) << capstan;
    run.engine->backward(loss);
  }
}

// The inputs of gpt's head are quantised, whoever multiplies them.
TEST(HeadInEngine, TakesQuantisedInputs) {
  const std::string quantised = R"("compression_training": {"activation_quantization": {
    "shared_parameters": {"enabled": true, "range_calibration": "dynamic"},
    "different_groups": {"head": {"params": {"bits": 4}, "modules": ["^head$"]}}}})";
  const auto chunks = gpt_losses(kChunks, quantised);
  expect_losses_near(chunks, gpt_losses(kAll, quantised), 2e-6);
  EXPECT_GT(std::abs(chunks.front() - gpt_losses(kChunks).front()), 1e-5);
}

/// An embedding, and a head that is a layer: it may be computed again.
struct LayeredHead : torch::nn::Module {
  LayeredHead()
      : embedding(register_module("embedding", torch::nn::Embedding(64, 16))),
        head(register_module("head", torch::nn::Linear(16, 64))) {}
  at::Tensor forward(const at::Tensor& ids, const at::Tensor& labels) {
    const at::Tensor hidden = embedding(ids).tanh();
    return layer("head", hidden, [&](const at::Tensor& x) {
      return linear_cross_entropy(x.relu(), head->weight, labels, {.bias = head->bias, .softcap = 5.0});
    });
  }
  std::string describe() const { return R"({"layer_names": ["head"]})"; }
  torch::nn::Embedding embedding;
  torch::nn::Linear head;
};

class ALayersHead : public ::testing::Test {
 protected:
  std::vector<double> train(const std::string& capstan, const std::string& members = "") {
    const std::string path = (folder_.path() / "config.json").string();
    std::ofstream(path) << R"({"train_batch_size": 2, "optimizer": {"type": "Adam", "params": {"lr": 0.01}}, )"
                        << members << R"("capstan": {)" << capstan << "}}";
    torch::manual_seed(3);
    Engine engine = initialize(std::make_shared<LayeredHead>(), path);
    std::vector<double> losses;
    for (int i = 0; i < 3; ++i) {
      losses.push_back(engine.train_batch([] {
        const at::Tensor ids = (torch::arange(2 * 37).square() * 7).remainder(61).view({2, 37});
        Batch batch;
        batch.tensors = {{"input_ids", ids}, {"labels", ids}};
        return batch;
      }));
    }
    return losses;
  }
  test::TemporaryFolder folder_;
};

TEST_F(ALayersHead, IsComputedAgainBitByBit) {
  const std::string chunks = R"("run": {"loss_chunk": 4000})";
  const auto plain = train(chunks);
  EXPECT_EQ(train(chunks + R"(, "recompute": {"check": "always"})"), plain);
  expect_losses_near(plain, train(kAll), 2e-6);
}

}  // namespace
}  // namespace capstan
