// Named outputs of models, by an engine.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <capstan/capstan.hpp>

#include "core/errors.hpp"
#include "tests/core/data/temporary_folder.hpp"
#include "tests/probes/probe_run.hpp"
#include "tests/support/ranks.hpp"

namespace capstan {
namespace {

using ::testing::HasSubstr;
using testing::ProbeRun;
using ::testing::ThrowsMessage;

/// gpt's logits of a batch without labels.
at::Tensor logits_of(ProbeRun& run, std::int64_t index = 0) {
  Batch batch = run.batch(index);
  batch.tensors.erase("labels");
  return run.engine->outputs(batch).at("logits");
}

TEST(Outputs, OfGptAreTheLogitsOfItsLoss) {
  ProbeRun run;
  const at::Tensor logits = logits_of(run);
  const Batch batch = run.batch(0);
  const double loss = run.engine->eval_batch([&] { return run.batch(0); }, 1);

  EXPECT_EQ(logits.sizes(), (std::vector<std::int64_t>{4, 16, 256}));
  EXPECT_FALSE(logits.requires_grad());
  EXPECT_NEAR(at::cross_entropy_loss(logits.flatten(0, 1), batch.tensors.at("labels").flatten()).item<double>(), loss,
              1e-6);
}

TEST(Outputs, LeaveTheTrainingAsItWas) {
  ProbeRun quiet, run;
  for (int i = 0; i < 3; ++i) {
    logits_of(run, i);
    Batch batch = run.batch(i % 2);
    const at::Tensor loss = run.engine->forward(batch);
    logits_of(run, i + 7);
    run.engine->backward(loss);
    run.engine->step();
    quiet.step();
    EXPECT_EQ(run.engine->mean_loss(), quiet.engine->mean_loss());
  }
}

TEST(Outputs, AreTheSameAtEveryStage) {
  test::expect_on_ranks(2, [](Communicator& communicator) {
    const std::shared_ptr<Communicator> ranks(&communicator, [](Communicator*) {});
    at::Tensor first;
    for (const int stage : {0, 1, 2, 3}) {
      ProbeRun run("",
                   R"("zero_optimization": {"stage": )" + std::to_string(stage) +
                       R"(, "stage3_param_persistence_threshold": 0})",
                   R"("layers": 2, "d": 32, "heads": 2, "seq": 16)", ranks);
      run.steps(2);
      const at::Tensor logits = logits_of(run, communicator.rank());
      if (!first.defined()) first = logits;
      EXPECT_TRUE(logits.equal(first)) << stage;
    }
  });
}

/// The mean of squares; on demand also what it is the mean of, in training and out of it.
struct Squares : torch::nn::Module {
  Squares() : weight(register_parameter("weight", torch::ones({3}))) {}
  at::Tensor forward(const BatchView& batch) { return (batch.tensor("x") * weight).square().mean(); }
  at::Tensor weight;
};
struct Telling : Squares {
  sdk::NamedOutputs outputs(const BatchView& batch) {
    const at::Tensor product = batch.tensor("x") * weight;
    return {{"product", product}, {"trains", torch::tensor(is_training() ? 1 : 0)}};
  }
};
struct Silent : Squares {
  sdk::NamedOutputs outputs(const BatchView&) { return {{"product", at::Tensor()}}; }
};

template <class Net>
Engine engine_of(const test::TemporaryFolder& folder) {
  return initialize(std::make_shared<Net>(),
                    folder.write("config.json", R"({"train_batch_size": 2, "optimizer": {"type": "Adam"}})"));
}

Batch batch_of_x() {
  Batch batch;
  batch.tensors["x"] = torch::arange(6).view({2, 3}).to(torch::kFloat);
  return batch;
}

TEST(Outputs, OfAProgramsModuleAreWhatItsFunctionReturns) {
  const test::TemporaryFolder folder;
  Engine engine = engine_of<Telling>(folder);
  Batch batch = batch_of_x();
  const auto outputs = engine.outputs(batch);

  ASSERT_EQ(outputs.size(), 2u);
  EXPECT_TRUE(outputs.at("product").equal(batch.tensors.at("x")));
  EXPECT_EQ(outputs.at("trains").item<int>(), 0);
}

TEST(Outputs, ThatAModelDoesNotGiveAreNamed) {
  const test::TemporaryFolder folder;
  Batch batch = batch_of_x();
  Engine none = engine_of<Squares>(folder), undefined = engine_of<Silent>(folder);
  EXPECT_THAT([&] { none.outputs(batch); },
              ThrowsMessage<RuntimeFault>(
                  HasSubstr("Squares' gives no outputs beside its loss. Give its module a function outputs(const "
                            "capstan::sdk::BatchView&), which returns named tensors.")));
  EXPECT_THAT([&] { undefined.outputs(batch); },
              ThrowsMessage<PluginError>(
                  HasSubstr("Silent', outputs: output 'product' is an undefined tensor. Leave it out.")));
}

TEST(Outputs, OfOneNameTwiceAreRefused) {
  capstan_model table{};
  table.struct_size = sizeof table;
  table.visit = [](void*, const capstan_visitor*, capstan_error*) { return CAPSTAN_OK; };
  table.outputs = [](void*, capstan_batch*, void* ctx, void (*take)(void*, capstan_str, capstan_tensor),
                     capstan_error*) {
    const at::Tensor one = torch::ones({1});
    for (int i = 0; i < 2; ++i) take(ctx, sdk::to_str("one"), sdk::lend(one));
    return CAPSTAN_OK;
  };
  Model model(
      &table, nullptr, [](void*) {}, "Twins");
  Batch batch;
  EXPECT_THAT([&] { model.outputs(batch); },
              ThrowsMessage<PluginError>("model 'Twins', outputs: gives 'one' twice. Names must differ."));
}

}  // namespace
}  // namespace capstan
