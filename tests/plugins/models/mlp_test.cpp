#include <gmock/gmock.h>
#include <torch/torch.h>

#include "tests/plugins/models/built_model.hpp"
#include "tests/plugins/models/token_batch.hpp"
#include "tests/support/test_layers.hpp"

namespace capstan {
namespace {

using testing::built_model;
using ::testing::ElementsAre;
using testing::parameter;
using testing::TestLayers;
using testing::token_batch;

constexpr const char* kText = "the quick brown fox jumps over the lazy dog";

Model mlp() {
  return built_model("mlp",
                     Json::parse(R"({"context": 3, "d": 5, "hidden": 7, "layers": 2, "seq": 32, "vocab": 128})"));
}

TEST(Mlp, PredictsEachByteFromTheContextBeforeIt) {
  Model model = mlp();
  Batch batch = token_batch(kText, 0, 2, 10);
  const auto p = [&](const char* name) { return parameter(model, name).to(torch::kDouble); };
  const auto ids = batch.tensors["input_ids"], labels = batch.tensors["labels"];

  double total = 0;
  for (std::int64_t row = 0; row < 2; ++row) {
    for (std::int64_t t = 0; t < 10; ++t) {
      std::vector<at::Tensor> context;
      for (std::int64_t back = 2; back >= 0; --back) {
        const auto id = t >= back ? ids[row][t - back].item<std::int64_t>() : 128;
        context.push_back(p("tok_emb.weight")[id]);
      }
      auto x = torch::cat(context);
      x = (p("hidden.0.weight").mv(x) + p("hidden.0.bias")).tanh();
      x = (p("hidden.1.weight").mv(x) + p("hidden.1.bias")).tanh();
      const auto logits = p("head.weight").mv(x) + p("head.bias");
      total -= logits.log_softmax(0)[labels[row][t].item<std::int64_t>()].item<double>();
    }
  }

  EXPECT_NEAR(model.forward(batch).item<double>(), total / 20, 1e-5);
}

TEST(Mlp, LearnsASentence) {
  torch::manual_seed(1);
  Model model = mlp();
  Batch batch = token_batch(kText, 0, 1, 32);
  std::vector<at::Tensor> parameters;
  for (const NamedTensor& named : model.parameters()) parameters.push_back(named.tensor);
  torch::optim::Adam adam(parameters, torch::optim::AdamOptions(0.02));

  const double before = model.forward(batch).item<double>();
  for (int step = 0; step < 200; ++step) {
    adam.zero_grad();
    model.forward(batch).backward();
    adam.step();
  }

  EXPECT_GT(before, 4);
  EXPECT_LT(model.forward(batch).item<double>(), 0.5);
}

TEST(Mlp, RunsEachHiddenLayerAsALayer) {
  Model model = mlp();
  Batch batch = token_batch(kText, 0, 1, 8);
  TestLayers layers;
  batch.layers = &layers;

  model.forward(batch);

  EXPECT_THAT(layers.seen, ElementsAre("hidden.0", "hidden.1"));
}

TEST(Mlp, RunsInBf16) {
  Model model = mlp();
  Batch batch = token_batch(kText, 0, 1, 8);
  const double exact = model.forward(batch).item<double>();
  for (const NamedTensor& named : model.parameters()) named.tensor.set_data(named.tensor.data().to(torch::kBFloat16));

  EXPECT_NEAR(model.forward(batch).item<double>(), exact, 0.05);
}

TEST(Mlp, DescribesItself) {
  Model model = mlp();

  EXPECT_EQ(model.describe(),
            Json::parse(R"({"sequence_length": 32, "hidden_size": 7, "vocab_size": 128, "layers": 2})"));
}

}  // namespace
}  // namespace capstan
