#include <gmock/gmock.h>
#include <torch/torch.h>

#include <map>

#include "capstan/capstan.hpp"
#include "core/registry/parameter_role.hpp"

namespace capstan {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

/// A module, and the same as the engine sees it.
template <class M>
struct Wrapped {
  explicit Wrapped(Step<M> step = &sdk::default_step<M>) : model(wrap_module<M>(module, std::move(step))) {}
  std::shared_ptr<M> module = std::make_shared<M>();
  Model model;
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
  for (const auto& item : list) all.push_back(item.name);
  return all;
}

TEST(ModuleModel, ShowsEachTensorOnceAndTheModuleTable) {
  Wrapped<Tied> tied;

  EXPECT_THAT(names(tied.model.parameters()), ElementsAre("shift", "weight_again"));
  EXPECT_THAT(names(tied.model.buffers()), ElementsAre("mean"));
  const auto& modules = tied.model.modules();
  ASSERT_EQ(modules.size(), 3u);
  EXPECT_EQ(modules[0].path, "");
  EXPECT_THAT(modules[0].class_name, HasSubstr("Tied"));
  EXPECT_EQ(modules[1].path, "encoder");
  EXPECT_EQ(modules[2].path, "decoder");
  EXPECT_EQ(modules[2].class_name, "torch::nn::LinearImpl");
}

TEST(ModuleModel, HandsOutTheModulesOwnTensors) {
  Wrapped<Tied> tied;
  Batch batch = batch_of(torch::randn({4, 3}), torch::randn({4, 3}));

  tied.model.forward(batch).backward();

  EXPECT_TRUE(tied.model.parameters()[1].tensor.is_same(tied.module->encoder->weight));
  EXPECT_TRUE(tied.model.parameters()[1].tensor.grad().defined());
  EXPECT_TRUE(tied.model.buffers()[0].tensor.is_same(tied.module->mean));
}

/// Tied as one must not.
struct TiedByValues : torch::nn::Module {
  TiedByValues() {
    const auto first = register_parameter("first", torch::ones({2}));
    register_parameter("second", torch::ones({2})).set_data(first);
    register_parameter("none", torch::ones({0}));
    register_parameter("nothing", torch::ones({0}));
  }
  at::Tensor forward(const BatchView&) { return {}; }
};

TEST(ModuleModel, RefusesTwoTensorsOnTheSameValues) {
  EXPECT_THAT(
      [] { Wrapped<TiedByValues> tied; },
      ThrowsMessage<PluginError>(EndsWith(
          "TiedByValues': parameters 'first' and 'second' are two tensors on the same values, and each would be "
          "updated by itself. Tie them by registering one tensor under both names, or one module twice.")));
}

struct FromBatch : torch::nn::Module {
  at::Tensor forward(const BatchView& batch) {
    return batch.tensor("pixels").mean() * batch.number("weight").value_or(1) + (batch.number("absent") ? 1000 : 0);
  }
  std::string describe() const { return R"({"hidden_size": 3})"; }
};

TEST(ModuleModel, ReadsNamedTensorsAndNumbers) {
  Wrapped<FromBatch> model;
  Batch batch;
  batch.tensors["pixels"] = torch::tensor({1.0f, 3.0f});
  batch.numbers["weight"] = 5;

  EXPECT_EQ(model.model.forward(batch).item<float>(), 10);
}

TEST(ModuleModel, ReportsATensorThatTheBatchLacks) {
  Wrapped<FromBatch> model;
  Batch batch;

  EXPECT_THAT([&] { model.model.forward(batch); },
              ThrowsMessage<PluginError>(EndsWith("FromBatch', forward: the batch has no tensor 'pixels'. It has:")));
}

struct Silent : torch::nn::Module {
  at::Tensor forward(const BatchView&) { return {}; }
};

TEST(ModuleModel, DescribesItselfWhereTheModuleDoes) {
  EXPECT_EQ(Wrapped<FromBatch>().model.describe().at("hidden_size"), Json(3));
  EXPECT_EQ(Wrapped<Silent>().model.describe(), Json::object());
}

/// Buffers of which one is what its constructor makes of nothing.
struct Masked : torch::nn::Module {
  Masked() {
    register_buffer("mean", torch::zeros({3}));
    register_buffer("mask", torch::ones({3, 3}).tril());
  }
  at::Tensor forward(const BatchView&) { return {}; }
  std::string describe() const { return R"({"non_persistent_buffers": ["mask"]} )"; }
};

TEST(ModuleModel, NamesTheBuffersThatCheckpointsLeaveOut) {
  const Wrapped<Masked> masked;

  EXPECT_TRUE(masked.model.buffers()[0].persistent);
  EXPECT_FALSE(masked.model.buffers()[1].persistent);
}

TEST(ModuleModel, TellsTheFurtherNamesOfTiedTensors) {
  const std::map<std::string, std::string> names = {{"encoder.weight", "weight_again"},
                                                    {"decoder.weight", "weight_again"}};

  EXPECT_EQ(Wrapped<Tied>().model.tied(), names);
  EXPECT_EQ(sdk::with_texts(R"({"a": 1} )", "tied", {{"b", "c\"d"}}), R"({"a": 1, "tied": {"b": "c\"d"}} )");
  EXPECT_EQ(sdk::with_texts("{ }", "tied", {{"b", "c"}}), R"({ "tied": {"b": "c"}})");
  EXPECT_EQ(sdk::with_texts(R"({"tied": {}})", "tied", {{"b", "c"}}), R"({"tied": {}})");
  EXPECT_EQ(sdk::with_texts("{}", "tied", {}), "{}");
}

/// What the model says of its parameters: "first.weight" -> "embedding".
std::map<std::string, std::string> roles_of(const Model& model) {
  std::map<std::string, std::string> roles;
  for (const NamedTensor& parameter : model.parameters()) {
    roles[parameter.name] = parameter_role_name(parameter.role);
  }
  return roles;
}

/// Of LibTorch's modules alone, which know nothing of roles.
struct LanguageModel : torch::nn::Module {
  LanguageModel() {
    register_module("embed", torch::nn::Embedding(11, 4));
    register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({4})));
    register_module("attention", torch::nn::MultiheadAttention(4, 2));
    register_module("up", torch::nn::Linear(4, 8));
    register_module("down", torch::nn::Linear(8, 4));
    register_parameter("gain", torch::ones({4}));
    register_module("logits", torch::nn::Linear(4, 11));
  }
  at::Tensor forward(const at::Tensor& hidden, const at::Tensor&) { return hidden.sum(); }
};

TEST(ModelRoles, FollowFromTheClassesOfModulesAndFromShapes) {
  const std::map<std::string, std::string> expected = {{"embed.weight", "embedding"},
                                                       {"norm.weight", "norm"},
                                                       {"norm.bias", "norm"},
                                                       {"attention.in_proj_weight", "matrix"},
                                                       {"attention.in_proj_bias", "bias"},
                                                       {"attention.out_proj.weight", "matrix"},
                                                       {"attention.out_proj.bias", "bias"},
                                                       {"up.weight", "matrix"},
                                                       {"up.bias", "bias"},
                                                       {"down.weight", "matrix"},
                                                       {"down.bias", "bias"},
                                                       {"gain", "other"},
                                                       {"logits.weight", "head"},
                                                       {"logits.bias", "bias"}};
  EXPECT_EQ(roles_of(Wrapped<LanguageModel>().model), expected);
}

/// The embedding gives the logits too, so that the last linear layer is one of the hidden ones.
struct TiedLanguageModel : torch::nn::Module {
  TiedLanguageModel() {
    register_module("embed", torch::nn::Embedding(11, 4));
    register_module("hidden", torch::nn::Linear(4, 4));
  }
  at::Tensor forward(const at::Tensor& hidden, const at::Tensor&) { return hidden.sum(); }
};

/// Without an embedding, what comes last gives the logits.
struct Classifier : torch::nn::Module {
  Classifier() {
    register_module("picture", torch::nn::Conv2d(3, 8, 3));
    register_module("norm", torch::nn::BatchNorm2d(8));
    register_module("hidden", torch::nn::Linear(8, 8));
    register_module("classes", torch::nn::Linear(8, 10));
  }
  at::Tensor forward(const at::Tensor& hidden, const at::Tensor&) { return hidden.sum(); }
};

TEST(ModelRoles, MakeAHeadOnlyOfWhatGivesLogits) {
  const auto tied = roles_of(Wrapped<TiedLanguageModel>().model), classifier = roles_of(Wrapped<Classifier>().model);
  EXPECT_EQ(tied.at("embed.weight"), "embedding");
  EXPECT_EQ(tied.at("hidden.weight"), "matrix");
  EXPECT_EQ(classifier.at("picture.weight"), "matrix");
  EXPECT_EQ(classifier.at("norm.weight"), "norm");
  EXPECT_EQ(classifier.at("hidden.weight"), "matrix");
  EXPECT_EQ(classifier.at("classes.weight"), "head");
}

/// Says what the modules cannot tell.
struct SaysRoles : TiedLanguageModel {
  std::string roles = R"({"hidden.weight": "head", "embed.weight": "matrix"})";
  std::string describe() const { return R"({"vocab_size": 11, "roles": )" + roles + "}"; }
};

struct SaysAnUnknownRole : SaysRoles {
  SaysAnUnknownRole() { roles = R"({"hidden.weight": "haed"})"; }
};

struct SaysAnUnknownParameter : SaysRoles {
  SaysAnUnknownParameter() { roles = R"({"hidden.wieght": "head"})"; }
};

struct SaysAListOfRoles : SaysRoles {
  SaysAListOfRoles() { roles = R"(["head"])"; }
};

TEST(ModelRoles, AreWhatTheModelSaysFirst) {
  const auto roles = roles_of(Wrapped<SaysRoles>().model);
  EXPECT_EQ(roles.at("hidden.weight"), "head");
  EXPECT_EQ(roles.at("embed.weight"), "matrix");
  EXPECT_EQ(roles.at("hidden.bias"), "bias");
}

TEST(ModelRoles, ThatAModelCannotGiveAreRefused) {
  EXPECT_THAT([] { Wrapped<SaysAnUnknownRole> model; },
              ThrowsMessage<PluginError>(
                  EndsWith("SaysAnUnknownRole', describe: roles.hidden.weight: must be one of other, matrix, "
                           "embedding, head, norm, bias, got 'haed'. Did you mean 'head'?")));
  EXPECT_THAT([] { Wrapped<SaysAnUnknownParameter> model; },
              ThrowsMessage<PluginError>(EndsWith(
                  "SaysAnUnknownParameter', describe: roles: the model shows no parameter 'hidden.wieght'. Did "
                  "you mean 'hidden.weight'?")));
  EXPECT_THAT(
      [] { Wrapped<SaysAListOfRoles> model; },
      ThrowsMessage<PluginError>(EndsWith("SaysAListOfRoles', describe: roles: must be an object, got [\"head\"].")));
}

struct Regression : torch::nn::Module {
  Regression() : line(register_module("line", torch::nn::Linear(1, 1))) {}
  at::Tensor forward(const at::Tensor& x) { return line(x); }
  torch::nn::Linear line;
};

TEST(ModuleModel, RunsAStepFunctionForAModuleThatGivesNoLoss) {
  Wrapped<Regression> model([](Regression& module, const BatchView& batch) {
    return torch::mse_loss(module.forward(batch.tensor("x")), batch.tensor("y"));
  });
  Batch batch;
  batch.tensors = {{"x", torch::ones({2, 1})}, {"y", torch::zeros({2, 1})}};

  const float expected = (model.module->line->weight + model.module->line->bias).square().item<float>();
  EXPECT_FLOAT_EQ(model.model.forward(batch).item<float>(), expected);
}

TEST(ModuleModel, SwitchesBetweenTrainingAndEvaluation) {
  Wrapped<Tied> tied;

  tied.model.set_training(false);
  EXPECT_FALSE(tied.module->encoder->is_training());
  tied.model.set_training(true);
  EXPECT_TRUE(tied.module->encoder->is_training());
}

/// Returns or throws whatever the test wants.
struct Anything : torch::nn::Module {};

std::function<void()> forward_of(std::function<at::Tensor()> result) {
  return [result = std::move(result)] {
    Wrapped<Anything> model([&](Anything&, const BatchView&) { return result(); });
    Batch batch;
    model.model.forward(batch);
  };
}

TEST(ModuleModel, RefusesWhatIsNoLoss) {
  EXPECT_THAT(
      forward_of([] { return at::Tensor(); }),
      ThrowsMessage<PluginError>(EndsWith("', forward: returned an undefined tensor. Return the loss of the batch.")));
  EXPECT_THAT(forward_of([] {
                return torch::zeros({4, 128});
              }),
              ThrowsMessage<PluginError>(
                  EndsWith("', forward: returned a Float tensor of shape [4, 128]. Return one floating-point "
                           "number, the mean loss of the batch.")));
  EXPECT_THAT(forward_of([] { return torch::tensor(3); }),
              ThrowsMessage<PluginError>(
                  EndsWith("', forward: returned a Long tensor of shape []. Return one floating-point number, "
                           "the mean loss of the batch.")));
}

TEST(ModuleModel, TakesALossOfOneElementAsAScalar) {
  Wrapped<Anything> model([](Anything&, const BatchView&) { return torch::full({1, 1}, 2.5f); });
  Batch batch;

  EXPECT_EQ(model.model.forward(batch).dim(), 0);
}

TEST(ModuleModel, TellsWhatTheModuleThrew) {
  EXPECT_THAT(forward_of([]() -> at::Tensor { throw std::out_of_range("the sky fell"); }),
              ThrowsMessage<PluginError>(EndsWith("', forward: the sky fell")));
  EXPECT_THAT(forward_of([]() -> at::Tensor { throw 7; }),
              ThrowsMessage<PluginError>(EndsWith("', forward: threw something that is not a std::exception")));
}

// What LibTorch's allocators throw has another tail than its other errors.
TEST(ModuleModel, TellsTheAllocatorsSentenceWithoutItsBacktrace) {
  EXPECT_THAT(forward_of([]() -> at::Tensor { CAFFE_ENFORCE(false, "can't allocate memory"); }),
              ThrowsMessage<PluginError>(EndsWith("can't allocate memory")));
}

TEST(ModuleModel, TellsLibTorchsSentenceWithoutItsBacktrace) {
  EXPECT_THAT(
      forward_of([] {
        return torch::ones({2, 3}).mm(torch::ones({2, 3}));
      }),
      ThrowsMessage<PluginError>(EndsWith("', forward: mat1 and mat2 shapes cannot be multiplied (2x3 and 2x3)")));
}

}  // namespace
}  // namespace capstan
