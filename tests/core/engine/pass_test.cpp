// Programs whose forward returns what it likes, and that decide themselves what ends a step and how it updates.

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <stdexcept>

#include "core/errors.hpp"
#include "tests/core/engine/small_model.hpp"

namespace capstan {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;
using testing_support::batch_number;
using testing_support::SmallModel;
using testing_support::SmallRun;

constexpr const char* kSgd = R"({"train_batch_size": 8, "steps_per_print": null, "gradient_clipping": 0,
  "optimizer": {"type": "SGD", "params": {"lr": 0.1}}})";
constexpr const char* kTwoMicroBatches = R"({"train_batch_size": 16, "gradient_accumulation_steps": 2,
  "steps_per_print": null, "gradient_clipping": 0, "optimizer": {"type": "SGD", "params": {"lr": 0.1}}})";

/// The loss of a batch in a pass of `kind`, which also gives its two inputs back.
at::Tensor loss_in_pass(SmallRun& run, std::int64_t index, PassKind kind = PassKind::kTraining) {
  Batch batch = batch_number(index, 8);
  at::Tensor loss;
  run.engine.pass(kind, batch, [&] { loss = run.model.loss(batch.tensors.at("x"), batch.tensors.at("y")); });
  return loss;
}

void expect_same(const SmallModel& one, const SmallModel& other) {
  for (std::size_t i = 0; i < one.parameters.size(); ++i) {
    EXPECT_TRUE(one.parameters[i].tensor.equal(other.parameters[i].tensor)) << one.parameters[i].name;
  }
}

TEST(Pass, TrainsAsForwardDoes) {
  SmallRun forward(kSgd), pass(kSgd);
  for (int i = 0; i < 3; ++i) {
    forward.step();
    pass.engine.backward(loss_in_pass(pass, i));
    pass.engine.step();
    EXPECT_EQ(pass.engine.mean_loss(), forward.engine.mean_loss());
  }
  expect_same(forward.model, pass.model);
}

TEST(Pass, ThrowsWhatItsFunctionThrowsAndGoesOn) {
  struct Own : std::logic_error {
    using std::logic_error::logic_error;
  };
  SmallRun quiet(kSgd), run(kSgd);
  Batch batch = batch_number(0, 8);
  EXPECT_THAT([&] { run.engine.pass(PassKind::kTraining, batch, [] { throw Own("mine"); }); },
              ThrowsMessage<Own>("mine"));
  run.engine.backward(loss_in_pass(run, 0));
  run.engine.step();
  quiet.step();
  expect_same(quiet.model, run.model);
}

TEST(Pass, RefusesRowsOfSeveralDocumentsForAModelThatDoesNotSayThatItReadsThem) {
  SmallRun run(kSgd);
  Batch batch = batch_number(0, 8);
  batch.tensors["document_ids"] = at::zeros({8, 2}, at::kInt);
  EXPECT_THAT([&] { run.engine.pass(PassKind::kTraining, batch, [] {}); },
              ThrowsMessage<RuntimeFault>(HasSubstr(
                  "does not say that it reads 'document_ids': tokens would see other documents of their rows. "
                  "List the name under \"reads\" in describe() of a model that keeps documents apart, or leave "
                  "the tensor out of the batch.")));
}

TEST(Pass, EvaluatesWithoutGradientsBetweenForwardAndBackward) {
  SmallRun quiet(kSgd), run(kSgd);
  const at::Tensor loss = loss_in_pass(run, 0);
  EXPECT_FALSE(loss_in_pass(run, 1, PassKind::kEvaluation).requires_grad());
  run.engine.backward(loss);
  run.engine.step();
  quiet.step();
  expect_same(quiet.model, run.model);
}

TEST(Pass, TakesNoMoreMicroBatchesThanAStepHas) {
  SmallRun run(kTwoMicroBatches);
  run.engine.backward(loss_in_pass(run, 0));
  run.engine.backward(loss_in_pass(run, 1));
  EXPECT_THAT([&] { run.engine.backward(loss_in_pass(run, 2)); },
              ThrowsMessage<RuntimeFault>("backward: step 0 has had its 2 micro-batches (gradient_accumulation_steps). "
                                          "Call step() before the next."));
  run.engine.step();
  EXPECT_EQ(run.engine.progress().global_steps, 1);
}

TEST(Pass, TheProgramSaysWhichMicroBatchIsTheLast) {
  SmallRun counted(kTwoMicroBatches), told(kTwoMicroBatches);
  for (int i = 0; i < 2; ++i) {
    counted.engine.backward(loss_in_pass(counted, i));
    counted.engine.step();
    told.engine.set_accumulation_boundary(i == 1);
    told.engine.backward(loss_in_pass(told, i) / 2, {.over_accumulation = false});
    told.engine.step();
    EXPECT_EQ(told.engine.progress().global_steps, i);
  }
  expect_same(counted.model, told.model);
  EXPECT_EQ(told.engine.mean_loss(), counted.engine.mean_loss());
}

TEST(Pass, AProgramsOwnOptimizerGetsMastersAndMeanGradients) {
  SmallRun plugin(kSgd), own(R"({"train_batch_size": 8, "steps_per_print": null, "gradient_clipping": 0})");
  own.engine.set_own_optimizer([](const std::vector<OwnSlot>& slots) {
    for (const OwnSlot& slot : slots) at::Tensor(slot.master).sub_(slot.gradient, 0.1);
  });
  for (int i = 0; i < 3; ++i) {
    plugin.step();
    own.step();
  }
  expect_same(plugin.model, own.model);
  EXPECT_EQ(own.engine.progress().updates, 3);
  EXPECT_THAT(
      [&] { plugin.engine.set_own_optimizer([](const auto&) {}); },
      ThrowsMessage<ConfigError>("optimizer: the configuration names 'SGD', and the program brings an optimizer of "
                                 "its own. Leave one of them out."));
}

TEST(Pass, TheProgramSetsRatesWhereThereIsNoSchedule) {
  SmallRun quiet(kSgd), run(kSgd);
  run.engine.set_learning_rate(0, 0);
  run.step();
  expect_same(quiet.model, run.model);
  const std::vector<ParameterGroupView> groups = run.engine.parameter_groups();
  ASSERT_EQ(groups.size(), 1u);
  EXPECT_EQ(groups[0].numbers[0], (std::pair<std::string, std::vector<double>>("lr", {0})));
  EXPECT_THAT([&] { run.engine.set_learning_rate(0, -1); }, ThrowsMessage<RuntimeFault>(HasSubstr("not below 0")));
  SmallRun scheduled(R"({"train_batch_size": 8, "steps_per_print": null,
    "optimizer": {"type": "SGD", "params": {"lr": 0.1}}, "scheduler": {"type": "StepLR", "params": {"step_size": 2}}})");
  EXPECT_THAT(
      [&] { scheduled.engine.set_learning_rate(0, 1); },
      ThrowsMessage<ConfigError>(HasSubstr("scheduler: the configuration names 'StepLR', which sets the learning "
                                           "rate of every update.")));
}

std::vector<double> number(const Engine& engine, const std::string& name) {
  const std::vector<ParameterGroupView> groups = engine.parameter_groups();
  for (const auto& [key, values] : groups.at(0).numbers) {
    if (key == name) return values;
  }
  return {};
}

TEST(Pass, TheProgramSetsTheOtherNumbersOfAGroupToo) {
  SmallRun run(kSgd), configured(R"({"train_batch_size": 8, "steps_per_print": null, "gradient_clipping": 0,
    "optimizer": {"type": "SGD", "params": {"lr": 0.1, "weight_decay": 0.5}}})");
  EXPECT_THAT(run.engine.group_numbers(), testing::ElementsAre("lr", "momentum", "dampening", "weight_decay"));
  run.engine.set_group_number(0, "weight_decay", {0.5});
  run.steps(2);
  configured.steps(2);
  expect_same(run.model, configured.model);

  const auto refused = [&](const std::string& name, std::vector<double> values, const std::string& text) {
    EXPECT_THAT([&] { run.engine.set_group_number(0, name, values); }, ThrowsMessage<RuntimeFault>(text));
  };
  refused("weight_decay", {-1}, "parameter group 0: 'weight_decay' of optimizer 'SGD' must be at least 0, got -1.");
  refused("weight_decay", {0.1, 0.2},
          "parameter group 0: 'weight_decay' of optimizer 'SGD' must be one number, got 2.");
  refused("dampening", {NAN}, "parameter group 0: 'dampening' of optimizer 'SGD' must be finite, got nan.");
  refused(
      "nesterov", {1},
      "parameter group 0: 'nesterov' of optimizer 'SGD' counts when the engine is made and cannot change afterwards. "
      "Make a new engine.");
  refused("rho", {1}, "parameter group 0: optimizer 'SGD' has no number 'rho'.");
  refused("momentum", {0.9},
          "parameter group 0: 'momentum' of optimizer 'SGD' was 0 when the engine was made, so that there is no state "
          "'momentum_buffer', which another value needs. Make the engine with a momentum other than 0.");
  EXPECT_THAT([&] { run.engine.set_group_number(1, "lr", {1}); },
              ThrowsMessage<RuntimeFault>("set_group_number: there is no parameter group 1; groups are 0 to 0."));
  SmallRun bare(R"({"train_batch_size": 8, "steps_per_print": null})");
  EXPECT_THAT([&] { bare.engine.set_group_number(0, "lr", {1}); },
              ThrowsMessage<RuntimeFault>("set_group_number: the configuration has no optimizer."));
  EXPECT_EQ(number(run.engine, "weight_decay"), std::vector<double>{0.5});
}

TEST(Pass, ZeroGradDropsTheMicroBatchesSoFarWhichGoOnCounting) {
  SmallRun run(kTwoMicroBatches), half(kSgd);
  for (int i = 0; i < 2; ++i) {
    run.model.loss_factor = NAN;  // a micro-batch that the program throws away
    run.engine.backward(loss_in_pass(run, 10));
    run.engine.step();
    run.engine.zero_grad();
    run.model.loss_factor = 1;
    const at::Tensor loss = loss_in_pass(run, i);
    run.engine.backward(loss);
    run.engine.step();
    EXPECT_EQ(run.engine.mean_loss(), loss.item<double>());
    half.engine.backward(loss_in_pass(half, i) / 2);
    half.engine.step();
  }
  EXPECT_EQ(run.engine.progress().updates, 2);
  expect_same(half.model, run.model);
}

TEST(Pass, ZeroGradDropsAWholeStep) {
  SmallRun untouched(kSgd), run(kSgd);
  run.engine.zero_grad();  // nothing has begun
  run.engine.backward(loss_in_pass(run, 0));
  run.engine.zero_grad();
  run.engine.step();
  expect_same(untouched.model, run.model);
  EXPECT_TRUE(std::isnan(run.engine.mean_loss()));
}

TEST(Pass, RefusesAParameterThatIsUnfrozenAfterwards) {
  SmallRun run(kSgd), quiet(kSgd);
  const auto frozen = std::find_if(run.model.parameters.begin(), run.model.parameters.end(),
                                   [](const NamedTensor& one) { return !one.tensor.requires_grad(); });
  ASSERT_NE(frozen, run.model.parameters.end());
  at::Tensor tensor = frozen->tensor;
  tensor.set_requires_grad(true);
  EXPECT_THAT([&] { loss_in_pass(run, 0); },
              ThrowsMessage<RuntimeFault>("parameter '" + frozen->name +
                                          "' was frozen when the engine was made and is trainable now, and this engine "
                                          "would never train it. Make a new engine of the model, or freeze the "
                                          "parameter again (requires_grad_(False))."));
  EXPECT_FALSE(loss_in_pass(run, 0, PassKind::kEvaluation).requires_grad());
  tensor.set_requires_grad(false);
  run.step();
  quiet.step();
  expect_same(quiet.model, run.model);
}

TEST(Pass, KnowsOpenGathersAndEndsThemWithTheEngine) {
  std::optional<SmallRun> run(std::in_place, kSgd);
  GatherScope held = run->engine.gather({}, 0);
  EXPECT_EQ(run->engine.open_gathers(), 1u);
  {
    const GatherScope other = run->engine.gather();
    EXPECT_EQ(run->engine.open_gathers(), 2u);
  }
  EXPECT_EQ(run->engine.open_gathers(), 1u);
  run.reset();
  EXPECT_THAT([&] { held.close(); }, ThrowsMessage<RuntimeFault>(
                                         "gather: the engine was destroyed while its parameters were gathered, so that "
                                         "values written there are lost. Close the scope first."));
}

}  // namespace
}  // namespace capstan
