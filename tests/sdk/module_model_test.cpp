#include <gmock/gmock.h>
#include <torch/torch.h>

#include "capstan/sdk/model.hpp"
#include "tests/support/fake_host.hpp"
#include "tests/support/model_probe.hpp"

namespace capstan {
namespace {

using sdk::BatchView;
using sdk::Instance;
using sdk::ModelThunks;
using sdk::ModuleModel;
using ::testing::ElementsAre;
using testing::FakeHost;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::ModelProbe;
using ::testing::Pair;
using ::testing::ThrowsMessage;

/// A module behind the C interface, as in a program: without a plugin.
template <class M>
struct Wrapped {
  explicit Wrapped(typename ModuleModel<M>::Step step = &sdk::default_step<M>)
      : module(std::make_shared<M>()),
        instance{host.get(), ModuleModel<M>(module, std::move(step))},
        model(&ModelThunks<M>::kVtable, &instance) {}
  FakeHost host;
  std::shared_ptr<M> module;
  Instance<ModuleModel<M>> instance;
  ModelProbe model;
};

/// An autoencoder whose decoder is its encoder, as a second registration of the module; with the weight registered once
/// more by itself, and a running mean.
struct Tied : torch::nn::Module {
  Tied() {
    encoder = register_module("encoder", torch::nn::Linear(torch::nn::LinearOptions(3, 3).bias(false)));
    register_module("decoder", encoder);
    shift = register_parameter("shift", torch::zeros({3}));
    register_parameter("weight_again", encoder->weight);
    mean = register_buffer("mean", torch::zeros({3}));
  }
  at::Tensor forward(const at::Tensor& x, const at::Tensor& y) {
    return (encoder(encoder(x)) + shift - y).square().mean();
  }
  torch::nn::Linear encoder{nullptr};
  at::Tensor mean, shift;
};

Batch batch_of(at::Tensor x, at::Tensor y) {
  Batch batch;
  batch.tensors = {{"input_ids", std::move(x)}, {"labels", std::move(y)}};
  return batch;
}

template <class List>
std::vector<std::string> names(const List& list) {
  std::vector<std::string> all;
  for (const auto& item : list) all.push_back(item.first);
  return all;
}

TEST(ModuleModel, ShowsEachTensorOnceAndTheModuleTable) {
  const Wrapped<Tied> tied;

  EXPECT_THAT(names(tied.model.parameters), ElementsAre("shift", "weight_again"));
  EXPECT_THAT(names(tied.model.buffers), ElementsAre("mean"));
  EXPECT_THAT(tied.model.modules, ElementsAre(Pair("", HasSubstr("Tied")), Pair("encoder", "torch::nn::LinearImpl"),
                                              Pair("decoder", "torch::nn::LinearImpl")));
}

TEST(ModuleModel, HandsOutTheModulesOwnTensors) {
  const Wrapped<Tied> tied;
  Batch batch = batch_of(torch::randn({4, 3}), torch::randn({4, 3}));

  tied.model.forward(batch).backward();

  EXPECT_TRUE(tied.model.parameter("weight_again").is_same(tied.module->encoder->weight));
  EXPECT_TRUE(tied.model.parameter("weight_again").grad().defined());
  EXPECT_TRUE(tied.model.buffers[0].second.is_same(tied.module->mean));
}

struct FromBatch : torch::nn::Module {
  at::Tensor forward(const BatchView& batch) {
    return batch.tensor("pixels").mean() * batch.number("weight").value_or(1) + (batch.number("absent") ? 1000 : 0);
  }
  std::string describe() const { return R"({"hidden_size": 3})"; }
};

TEST(ModuleModel, ReadsNamedTensorsAndNumbers) {
  const Wrapped<FromBatch> model;
  Batch batch;
  batch.tensors["pixels"] = torch::tensor({1.0f, 3.0f});
  batch.numbers["weight"] = 5;

  EXPECT_EQ(model.model.forward(batch).item<float>(), 10);
}

TEST(ModuleModel, ReportsATensorThatTheBatchLacks) {
  const Wrapped<FromBatch> model;
  Batch batch;

  EXPECT_THAT([&] { model.model.forward(batch); }, ThrowsMessage<PluginError>("forward: no 'pixels' in the batch"));
}

TEST(ModuleModel, DescribesItselfWhereTheModuleDoes) {
  EXPECT_EQ(Wrapped<FromBatch>().model.describe(), R"({"hidden_size": 3})");
  EXPECT_EQ(ModelThunks<Tied>::kVtable.describe, nullptr);
}

struct Regression : torch::nn::Module {
  Regression() : line(register_module("line", torch::nn::Linear(1, 1))) {}
  at::Tensor forward(const at::Tensor& x) { return line(x); }
  torch::nn::Linear line;
};

TEST(ModuleModel, RunsAStepFunctionForAModuleThatGivesNoLoss) {
  const Wrapped<Regression> model([](Regression& module, const BatchView& batch) {
    return torch::mse_loss(module.forward(batch.tensor("x")), batch.tensor("y"));
  });
  Batch batch;
  batch.tensors = {{"x", torch::ones({2, 1})}, {"y", torch::zeros({2, 1})}};

  const float expected = (model.module->line->weight + model.module->line->bias).square().item<float>();
  EXPECT_FLOAT_EQ(model.model.forward(batch).item<float>(), expected);
}

TEST(ModuleModel, SwitchesBetweenTrainingAndEvaluation) {
  const Wrapped<Tied> tied;

  tied.model.training(false);
  EXPECT_FALSE(tied.module->encoder->is_training());
  tied.model.training(true);
  EXPECT_TRUE(tied.module->encoder->is_training());
}

/// Returns or throws whatever the test wants.
struct Anything : torch::nn::Module {};

std::function<void()> forward_of(std::function<at::Tensor()> result) {
  return [result = std::move(result)] {
    const Wrapped<Anything> model([&](Anything&, const BatchView&) { return result(); });
    Batch batch;
    model.model.forward(batch);
  };
}

TEST(ModuleModel, RefusesWhatIsNoLoss) {
  EXPECT_THAT(forward_of([] { return at::Tensor(); }),
              ThrowsMessage<PluginError>("forward: returned an undefined tensor. Return the loss of the batch."));
  EXPECT_THAT(
      forward_of([] {
        return torch::zeros({4, 128});
      }),
      ThrowsMessage<PluginError>("forward: returned a Float tensor of shape [4, 128]. Return one floating-point "
                                 "number, the mean loss of the batch."));
  EXPECT_THAT(
      forward_of([] { return torch::tensor(3); }),
      ThrowsMessage<PluginError>("forward: returned a Long tensor of shape []. Return one floating-point number, "
                                 "the mean loss of the batch."));
}

TEST(ModuleModel, TakesALossOfOneElementAsAScalar) {
  const Wrapped<Anything> model([](Anything&, const BatchView&) { return torch::full({1, 1}, 2.5f); });
  Batch batch;

  EXPECT_EQ(model.model.forward(batch).dim(), 0);
}

TEST(ModuleModel, TellsWhatTheModuleThrew) {
  EXPECT_THAT(forward_of([]() -> at::Tensor { throw std::out_of_range("the sky fell"); }),
              ThrowsMessage<PluginError>("forward: the sky fell"));
  EXPECT_THAT(forward_of([]() -> at::Tensor { throw 7; }),
              ThrowsMessage<PluginError>("forward: threw something that is not a std::exception"));
}

TEST(ModuleModel, TellsLibTorchsSentenceWithoutItsBacktrace) {
  EXPECT_THAT(forward_of([] {
                return torch::ones({2, 3}).mm(torch::ones({2, 3}));
              }),
              ThrowsMessage<PluginError>("forward: mat1 and mat2 shapes cannot be multiplied (2x3 and 2x3)"));
}

}  // namespace
}  // namespace capstan
