// Programs whose forward returns what it likes, and that decide themselves what ends a step and how it updates.

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

}  // namespace
}  // namespace capstan
