#include "core/engine/engine.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/cat.h>
#include <ATen/record_function.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>

#include "core/errors.hpp"
#include "tests/core/data/temporary_folder.hpp"
#include "tests/core/engine/small_model.hpp"

namespace capstan {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;
using testing_support::batch_number;
using testing_support::SmallModel;
using testing_support::SmallRun;

std::string config(const std::string& more, int batch = 8) {
  return R"({"train_batch_size": )" + std::to_string(batch) +
         R"(, "steps_per_print": null, "optimizer": {"type": "AdamW", "params": {"lr": 0.05, "weight_decay": 0.1}})" +
         (more.empty() ? "" : ", " + more) + "}";
}

/// The same training by hand, with LibTorch's own AdamW and clipping by the textbook formula.
void train_by_hand(SmallModel& model, int steps, double clip) {
  std::vector<at::Tensor> parameters, exp_avgs, exp_avg_sqs, counts;
  for (int i = 0; i < 3; ++i) {
    parameters.push_back(model.parameters[i].tensor);
    exp_avgs.push_back(at::zeros(parameters[i].sizes()));
    exp_avg_sqs.push_back(at::zeros(parameters[i].sizes()));
    counts.push_back(at::zeros({}));
  }
  for (int step = 0; step < steps; ++step) {
    Batch batch = batch_number(step, 8);
    model.loss(batch.tensors.find("x")->second, batch.tensors.find("y")->second).backward();
    at::NoGradGuard no_grad;
    std::vector<at::Tensor> gradients;
    double squares = 0;
    for (int i = 0; i < 3; ++i) {
      gradients.push_back(parameters[i].grad().clone());
      squares += gradients[i].to(at::kDouble).pow(2).sum().item<double>();
      counts[i].add_(1);
    }
    const double factor = clip > 0 ? std::min(1.0, clip / (std::sqrt(squares) + 1e-6)) : 1.0;
    for (at::Tensor& gradient : gradients) gradient.mul_(factor);
    at::_fused_adamw_(parameters, gradients, exp_avgs, exp_avg_sqs, {}, counts, 0.05, 0.9, 0.999, 0.1, 1e-8, false,
                      false);
    for (at::Tensor& parameter : parameters) parameter.mutable_grad().reset();
  }
}

void expect_same_weights(const SmallModel& one, const SmallModel& other, double tolerance) {
  for (std::size_t i = 0; i < one.parameters.size(); ++i) {
    const at::Tensor difference = (one.parameters[i].tensor - other.parameters[i].tensor).detach().abs().max();
    EXPECT_LE(difference.item<double>(), tolerance) << one.parameters[i].name;
  }
}

/// The length of the way that all parameters of two models are apart.
double distance(const SmallModel& one, const SmallModel& other) {
  double squares = 0;
  for (std::size_t i = 0; i < one.parameters.size(); ++i) {
    const at::Tensor difference = one.parameters[i].tensor.detach() - other.parameters[i].tensor.detach();
    squares += difference.to(at::kDouble).pow(2).sum().item<double>();
  }
  return std::sqrt(squares);
}

TEST(Engine, ClipsByTheNormPlusAMillionth) {
  // A step of SGD at rate 1 goes as far as the clipped norm: clip * norm / (norm + 1e-6). At a norm of a millionth or
  // so leaving the 1e-6 away would double it.
  SmallRun run(R"({"train_batch_size": 8, "steps_per_print": null, "gradient_clipping": 1e-3,
                   "optimizer": {"type": "SGD", "params": {"lr": 1000}}})");
  run.model.loss_factor = 1e-6F;
  const SmallModel before;
  run.engine.want_grad_norm(true);
  run.step();
  const double norm = run.engine.last_step().grad_norm;
  ASSERT_GT(norm, 1e-7);
  ASSERT_LT(norm, 1e-5);
  // Below the clip nothing is scaled.
  EXPECT_NEAR(distance(run.model, before), 1000 * norm, 1e-3 * 1000 * norm);

  SmallRun clipped(R"({"train_batch_size": 8, "steps_per_print": null, "gradient_clipping": 1e-8,
                       "optimizer": {"type": "SGD", "params": {"lr": 1e6}}})");
  clipped.model.loss_factor = 1e-6F;
  clipped.step();
  const double expected = 1e6 * 1e-8 * norm / (norm + 1e-6);
  EXPECT_NEAR(distance(clipped.model, before), expected, 1e-3 * expected);
}

TEST(Engine, ComputesNoNormWhereTheConfigurationSaysSoAndNothingClips) {
  const auto run = [](const char* clipping, const char* computed) {
    SmallRun made(config(R"("bf16": {"enabled": true}, "gradient_clipping": )" + std::string(clipping) +
                         R"(, "zero_optimization": {"compute_grad_norm": )" + computed + "}"));
    made.engine.want_grad_norm(true);
    const double loss = (made.steps(3), made.step());
    return std::pair(loss, made.engine.last_step().grad_norm);
  };
  const auto with = run("0", "true"), without = run("0", "false"), clipped = run("1e-3", "false");
  EXPECT_GT(with.second, 0);
  EXPECT_TRUE(std::isnan(without.second));
  EXPECT_EQ(without.first, with.first);
  EXPECT_GT(clipped.second, 0);  // clipping needs it
}

TEST(Engine, SkipsAStepThatOverflowsWithoutANorm) {
  SmallRun run(config(R"("bf16": {"enabled": true}, "gradient_clipping": 0,
                         "zero_optimization": {"compute_grad_norm": false})"));
  run.steps(2);
  run.model.steep = true;
  run.step();
  EXPECT_FALSE(run.engine.last_step().applied);
}

TEST(Engine, UpdatesAtTheRateOfTheUpdateThatItMakes) {
  // StepLR halves the rate every 2 updates: 0.8, 0.8, 0.4, 0.4, 0.2, ...; a skipped step is no update.
  SmallRun run(R"({"train_batch_size": 8, "steps_per_print": null, "gradient_clipping": 0,
                   "optimizer": {"type": "SGD", "params": {"lr": 0.8}},
                   "scheduler": {"type": "StepLR", "params": {"step_size": 2, "gamma": 0.5}},
                   "capstan": {"run": {"on_nan": "continue"}}})");
  run.engine.want_grad_norm(true);
  run.model.loss_factor = 1e-2F;
  int update = 0;
  for (int step = 0; step < 7; ++step) {
    SmallModel before;
    for (std::size_t i = 0; i < before.parameters.size(); ++i) {
      before.parameters[i].tensor.detach().copy_(run.model.parameters[i].tensor.detach());
    }
    run.model.steep = step == 3;
    run.step();
    ASSERT_EQ(run.engine.last_step().applied, step != 3);
    if (step == 3) continue;
    const double rate = 0.8 * std::pow(0.5, update++ / 2);
    EXPECT_DOUBLE_EQ(run.engine.last_step().lr, rate) << step;
    const double expected = rate * run.engine.last_step().grad_norm;
    EXPECT_NEAR(distance(run.model, before), expected, 1e-3 * expected) << step;
    EXPECT_DOUBLE_EQ(run.engine.next_lr(), 0.8 * std::pow(0.5, update / 2)) << step;
  }
}

class EngineClipping : public testing::TestWithParam<double> {};

/// Of rates 0.02, 0.01, 0 and -0.01 the last is none.
TEST(Engine, MakesNoUpdateAtARateBelowZeroAndNamesTheSchedule) {
  const char* const folder = CAPSTAN_TEST_BUILD_DIR "/tests/bad_plugins";
  setenv("CAPSTAN_PLUGIN_PATH", folder, 1);
  setenv("CAPSTAN_BAD", "below_0", 1);
  SmallRun run(R"({"train_batch_size": 2, "steps_per_print": null, "scheduler": {"type": "Bad"},
                   "optimizer": {"type": "SGD", "params": {"lr": 0.01}}})");
  run.steps(3);
  const at::Tensor before = run.model.parameters[0].tensor.detach().clone();
  EXPECT_THAT([&] { run.step(); },
              ThrowsMessage<PluginError>("scheduler 'Bad' (" + std::string(folder) +
                                         "/libcapstan_bad_scheduler.so): gives update 3 the learning rate -0.01 in "
                                         "parameter group 0; it must be finite and not below 0. Correct "
                                         "scheduler.params, or tell the plugin's author. The update was not made."));
  EXPECT_TRUE(run.model.parameters[0].tensor.detach().equal(before));
  unsetenv("CAPSTAN_BAD");
  unsetenv("CAPSTAN_PLUGIN_PATH");
}

TEST_P(EngineClipping, TrainsAsALoopByHandDoes) {
  SmallRun run(config("\"gradient_clipping\": " + std::to_string(GetParam())));
  run.steps(20);
  SmallModel by_hand;
  train_by_hand(by_hand, 20, GetParam());
  expect_same_weights(run.model, by_hand, 2e-6);
}

INSTANTIATE_TEST_SUITE_P(Norms, EngineClipping, testing::Values(0.0, 0.01, 100.0));

TEST(Engine, AccumulatesMicroBatchesIntoTheMeanGradient) {
  SmallRun whole(config("\"gradient_clipping\": 0.1"));
  SmallRun split(config("\"gradient_clipping\": 0.1, \"gradient_accumulation_steps\": 2"));
  ASSERT_EQ(split.rows, 4);
  for (int step = 0; step < 10; ++step) {
    const Batch batch = batch_number(step, 8);
    const at::Tensor x = batch.tensors.find("x")->second, y = batch.tensors.find("y")->second;
    int half = 0;
    const double split_loss = split.engine.train_batch([&] {
      Batch part;
      part.tensors.emplace("x", x.narrow(0, 4 * half, 4));
      part.tensors.emplace("y", y.narrow(0, 4 * half, 4));
      ++half;
      return part;
    });
    EXPECT_NEAR(split_loss, whole.engine.train_batch([&] { return batch; }), 1e-6);
    EXPECT_NEAR(split.engine.last_step().grad_norm, whole.engine.last_step().grad_norm, 1e-6);
  }
  expect_same_weights(whole.model, split.model, 2e-6);
}

TEST(Engine, GivesTheSameBitsForEverySubGroupSize) {
  SmallRun whole(config("")), tiled(config("\"zero_optimization\": {\"stage\": 0, \"sub_group_size\": 7}"));
  whole.steps(5);
  tiled.steps(5);
  expect_same_weights(whole.model, tiled.model, 0.0);
}

TEST(Engine, LeavesFrozenAndUnusedParametersAlone) {
  SmallRun run(config(""));
  const SmallModel before;
  run.steps(3);
  for (const int index : {3, 4}) {
    EXPECT_TRUE(run.model.parameters[index].tensor.equal(before.parameters[index].tensor));
  }
}

TEST(Engine, CountsStepsUpdatesAndSamples) {
  SmallRun run(config("\"gradient_accumulation_steps\": 2"));
  run.steps(3);
  EXPECT_EQ(run.engine.progress().global_steps, 3);
  EXPECT_EQ(run.engine.progress().updates, 3);
  EXPECT_EQ(run.engine.progress().global_samples, 24);
  EXPECT_EQ(run.next_batch, 6);
}

TEST(Engine, TrainsBf16WeightsThatAreTheRoundedMasters) {
  SmallRun run(config("\"bf16\": {\"enabled\": true}")), full(config(""));
  const double first = run.step();
  run.steps(29);
  full.steps(30);
  EXPECT_EQ(run.model.parameters[0].tensor.scalar_type(), at::kBFloat16);
  EXPECT_LT(run.engine.mean_loss(), 0.5 * first);
  // Masters keep what rounding to 8 bits would lose: the weights stay near those of fp32.
  const at::Tensor difference = run.model.parameters[0].tensor.to(at::kFloat) - full.model.parameters[0].tensor;
  EXPECT_LT(difference.abs().max().item<float>(), 0.1F);
}

TEST(Engine, ScalesAnFp16LossAndSkipsOverflows) {
  SmallRun run(config("\"fp16\": {\"enabled\": true, \"initial_scale_power\": 30, \"hysteresis\": 1}"));
  const at::Tensor before = run.model.parameters[0].tensor.detach().clone();
  ::testing::internal::CaptureStderr();
  run.step();
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), ::testing::HasSubstr("at loss scale 1073741824."));  // 2^30
  EXPECT_FALSE(run.engine.last_step().applied);
  EXPECT_TRUE(run.model.parameters[0].tensor.equal(before));
  EXPECT_EQ(run.engine.progress().skipped_steps, 1);
  run.steps(60);
  EXPECT_TRUE(run.engine.last_step().applied);
  EXPECT_LT(run.engine.mean_loss(), 0.5);
}

TEST(Engine, StopsAtALossThatIsNotFiniteAndNamesTheParameter) {
  SmallRun run(config(""));
  run.steps(2);
  at::Tensor weights = run.model.parameters[2].tensor.detach();
  weights.fill_(NAN);
  EXPECT_THAT([&] { run.step(); },
              ThrowsMessage<RuntimeFault>(HasSubstr("the loss is not finite at step 2 (micro-batch 0). The values of "
                                                    "parameter 'w2' are not finite.")));
  // Its losses are read, so that the step cannot be tried again.
  EXPECT_THAT([&] { run.step(); },
              ThrowsMessage<RuntimeFault>(
                  "an exception has ended the update of step 2 half way. Load a checkpoint before training goes on."));
}

TEST(Engine, NamesTheMicroBatchWhoseLossIsNotFinite) {
  SmallRun run(config("\"gradient_accumulation_steps\": 4"));
  const auto next = [&] {
    Batch batch = batch_number(run.next_batch, run.rows);
    if (++run.next_batch == 3) batch.tensors.find("y")->second.fill_(NAN);
    return batch;
  };
  EXPECT_THAT([&] { run.engine.train_batch(next); },
              ThrowsMessage<RuntimeFault>(HasSubstr("the loss is not finite at step 0 (micro-batch 2).")));
}

/// Counts what a device would have to be waited for: reads of single values of a tensor.
class Reads {
 public:
  Reads()
      : handle_(at::addThreadLocalCallback(at::RecordFunctionCallback([](const at::RecordFunction& op) {
                                             count_ += op.name() == std::string_view("aten::_local_scalar_dense");
                                             return std::unique_ptr<at::ObserverContext>();
                                           }).scopes({at::RecordScope::FUNCTION}))) {
    count_ = 0;
  }
  ~Reads() { at::removeCallback(handle_); }
  Reads(const Reads&) = delete;
  static int count() { return count_; }

 private:
  static thread_local int count_;
  at::CallbackHandle handle_;
};
thread_local int Reads::count_ = 0;

TEST(Engine, ReadsNoValueInAMicroBatchAndTheLossesOnceAStep) {
  SmallRun run(config("\"gradient_accumulation_steps\": 4, \"gradient_clipping\": 1"));
  run.step();
  double sum = 0;
  const Reads reads;
  for (int micro_batch = 0; micro_batch < 4; ++micro_batch) {
    Batch batch = batch_number(run.next_batch++, run.rows);
    const int before = Reads::count();
    const at::Tensor loss = run.engine.forward(batch);
    run.engine.backward(loss);
    EXPECT_EQ(Reads::count(), before) << "micro-batch " << micro_batch;
    sum += loss.item<double>();
    const int before_step = Reads::count();
    run.engine.step();
    EXPECT_LE(Reads::count(), before_step + 1);
  }
  EXPECT_EQ(Reads::count(), 4);  // by this test
  EXPECT_EQ(run.engine.mean_loss(), sum / 4);
}

TEST(Engine, SkipsALossThatIsNotFiniteWhereConfigured) {
  SmallRun run(config("\"capstan\": {\"run\": {\"on_nan\": \"continue\"}}"));
  run.step();
  const at::Tensor before = run.model.parameters[0].tensor.detach().clone();
  run.model.loss_factor = NAN;
  run.step();
  EXPECT_FALSE(run.engine.last_step().applied);
  EXPECT_TRUE(run.model.parameters[0].tensor.equal(before));
  run.model.loss_factor = 1;
  run.step();
  EXPECT_TRUE(run.engine.last_step().applied);
}

/// The loss of labels that are all ignored is 0 / 0, and its gradients are finite.
const char* const kAnyPrecision[] = {
    R"("fp16": {"enabled": false})",
    R"("bf16": {"enabled": true})",
    R"("fp16": {"enabled": true, "initial_scale_power": 4})",
    R"("fp16": {"enabled": true, "loss_scale": 8})",
    R"("torch_autocast": {"enabled": true, "dtype": "float16"})",
    R"("amp": {"enabled": true})",
};

TEST(Engine, StopsAtALossThatIsNotFiniteInEveryPrecisionThoughGradientsAre) {
  for (const char* precision : kAnyPrecision) {
    SmallRun run(config(precision));
    run.model.loss_factor = 1e-3f;  // for a scale of 65536, which makes a large one overflow
    run.step();
    const at::Tensor before = run.model.parameters[0].tensor.detach().clone();
    run.model.loss_added = NAN;
    EXPECT_THAT([&] { run.step(); },
                ThrowsMessage<RuntimeFault>(HasSubstr(
                    "the loss is not finite at step 1 (micro-batch 0). All parameters and gradients are finite. Resume "
                    "from the last checkpoint with a lower learning rate, or set capstan.run.on_nan to \"continue\" to "
                    "skip such steps.")))
        << precision;
    EXPECT_TRUE(run.model.parameters[0].tensor.equal(before)) << precision;
  }
}

/// The loss scale stays: no gradient has overflowed.
TEST(Engine, SkipsALossThatIsNotFiniteInEveryPrecisionWhereConfigured) {
  for (const std::string precision : kAnyPrecision) {
    SmallRun run(config(precision + R"(, "capstan": {"run": {"on_nan": "continue"}})"));
    run.model.loss_factor = 1e-3f;
    run.step();
    const at::Tensor before = run.model.parameters[0].tensor.detach().clone();
    run.model.loss_added = NAN;
    testing::internal::CaptureStderr();
    run.step();
    EXPECT_THAT(
        testing::internal::GetCapturedStderr(),
        HasSubstr("the loss is not finite at step 1 (micro-batch 0). All parameters and gradients are finite. The "
                  "step is skipped (capstan.run.on_nan is \"continue\")."));
    EXPECT_FALSE(run.engine.last_step().applied);
    EXPECT_EQ(run.engine.progress().skipped_steps, 1);
    EXPECT_TRUE(run.model.parameters[0].tensor.equal(before)) << precision;
    const double scale = run.engine.last_step().loss_scale;
    run.model.loss_added = 0;
    run.step();
    EXPECT_TRUE(run.engine.last_step().applied);
    EXPECT_EQ(run.engine.last_step().loss_scale, scale) << precision;
  }
}

TEST(Engine, SaysOfAnOverflowThatTheLossHasOneToo) {
  SmallRun run(config(R"("fp16": {"enabled": true, "initial_scale_power": 4})"));
  run.model.loss_factor = INFINITY;
  testing::internal::CaptureStderr();
  run.step();
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("OVERFLOW! Skipping step 0: a gradient is not finite at loss scale 16, nor is the loss "
                        "(micro-batch 0).\n"));
}

/// Precisions in which no loss is scaled, with and without clipping.
const char* const kUnscaled[] = {R"("gradient_clipping": 0)", R"("gradient_clipping": 1)",
                                 R"("gradient_clipping": 0, "bf16": {"enabled": true, "check_grad_overflow": false})"};

TEST(Engine, StopsAtAGradientThatIsNotFiniteAndNamesTheParameter) {
  for (const char* precision : kUnscaled) {
    SmallRun run(config(precision));
    run.step();
    const at::Tensor before = run.model.parameters[2].tensor.detach().clone();
    run.model.steep = true;
    EXPECT_THAT([&] { run.step(); },
                ThrowsMessage<RuntimeFault>(HasSubstr(
                    "a gradient is not finite at step 1, though the loss is. All parameters are finite; the first "
                    "gradient that is not is that of 'w2'. Resume from the last checkpoint with a lower learning "
                    "rate, or set capstan.run.on_nan to \"continue\" to skip such steps.")));
    EXPECT_TRUE(run.model.parameters[2].tensor.equal(before)) << precision;
  }
}

TEST(Engine, SkipsAGradientThatIsNotFiniteWhereConfigured) {
  for (const std::string precision : kUnscaled) {
    SmallRun run(config(precision + R"(, "capstan": {"run": {"on_nan": "continue"}})"));
    run.step();
    const at::Tensor before = run.model.parameters[2].tensor.detach().clone();
    run.model.steep = true;
    testing::internal::CaptureStderr();
    run.step();
    EXPECT_THAT(testing::internal::GetCapturedStderr(),
                HasSubstr("a gradient is not finite at step 1, though the loss is. All parameters are finite; the "
                          "first gradient that is not is that of 'w2'. The step is skipped (capstan.run.on_nan is "
                          "\"continue\")."));
    EXPECT_FALSE(run.engine.last_step().applied);
    EXPECT_EQ(run.engine.progress().skipped_steps, 1);
    EXPECT_TRUE(run.model.parameters[2].tensor.equal(before)) << precision;
    run.model.steep = false;
    run.step();
    EXPECT_TRUE(run.engine.last_step().applied);
  }
}

TEST(Engine, LetsTheModelLookAtABatchBeforeForward) {
  static int forwards = 0;
  capstan_model table = SmallModel::table();
  table.check = [](void*, capstan_batch* batch, capstan_error* error) {
    if (batch->tensors.find("x")->second.size(0) == 8) return CAPSTAN_OK;
    error->text = "x: 8 rows are wanted";
    return CAPSTAN_FAILED;
  };
  table.forward = [](void* self, capstan_batch* batch, capstan_tensor* loss, capstan_error* error) {
    ++forwards;
    return SmallModel::table().forward(self, batch, loss, error);
  };
  SmallModel model;
  PluginIndex plugins;
  const Config read = load_config({config(""), "test", false}, {}, plugins);
  Engine engine(Model(
                    &table, &model, [](void*) {}, "small"),
                read, plugins);

  engine.train_batch([] { return batch_number(0, 8); });
  EXPECT_THAT([&] { engine.train_batch([] { return batch_number(1, 7); }); },
              ThrowsMessage<PluginError>("model 'small', batch: x: 8 rows are wanted"));
  EXPECT_THAT([&] { engine.eval_batch([] { return batch_number(1, 7); }, 1); },
              ThrowsMessage<PluginError>("model 'small', batch: x: 8 rows are wanted"));
  EXPECT_EQ(forwards, 1);
}

TEST(Engine, NamesAParameterWhoseStorageWasExchanged) {
  SmallRun run(config(""));
  at::Tensor weights = run.model.parameters[1].tensor;
  weights.set_data(weights.detach().clone());
  EXPECT_THAT(
      [&] { run.step(); },
      ThrowsMessage<RuntimeFault>(HasSubstr("parameter 'b1': its storage was exchanged after the engine was built")));
}

TEST(Engine, EvaluatesWithoutAnOptimizerAndRefusesToStep) {
  SmallRun run(R"({"train_batch_size": 8, "steps_per_print": null})");
  EXPECT_GT(run.engine.eval_batch([&] { return batch_number(0, 8); }, 2), 0.0);
  EXPECT_THAT([&] { run.step(); }, ThrowsMessage<ConfigError>(HasSubstr("optimizer: step() needs one")));
}

TEST(Engine, EvaluatesWithoutChangingTheTraining) {
  SmallRun plain(config("")), evaluated(config(""));
  plain.steps(6);
  evaluated.steps(3);
  evaluated.engine.eval_batch([&] { return batch_number(77, 8); }, 4);
  evaluated.steps(3);
  expect_same_weights(plain.model, evaluated.model, 0.0);
}

TEST(Engine, PrintsTheProgressLineEveryStepsPerPrint) {
  testing::internal::CaptureStdout();
  {
    SmallRun run(R"({"train_batch_size": 8, "steps_per_print": 2, "timers": {"throughput": {"enabled": false}},
                     "optimizer": {"type": "AdamW", "params": {"lr": 0.001}}})");
    run.steps(4);
  }
  EXPECT_EQ(testing::internal::GetCapturedStdout(),
            "step=0, skipped=0, lr=[0.001], mom=[[0.9, 0.999]]\n"
            "step=2, skipped=0, lr=[0.001], mom=[[0.9, 0.999]]\n"
            "step=4, skipped=0, lr=[0.001], mom=[[0.9, 0.999]]\n");
}

TEST(Engine, PrintsTimersOfEachMicroStepAndEachStep) {
  testing::internal::CaptureStdout();
  {
    SmallRun run(config("\"wall_clock_breakdown\": true, \"gradient_accumulation_steps\": 2"));
    run.step();
  }
  const std::string number = "[0-9]+\\.[0-9][0-9]";
  const std::string micro = "\\[Rank 0\\] time \\(ms\\) \\| fwd_microstep: " + number +
                            " \\| bwd_microstep: " + number + " \\| bwd_inner_microstep: " + number +
                            " \\| data_microstep: " + number;
  EXPECT_THAT(
      testing::internal::GetCapturedStdout(),
      testing::MatchesRegex(micro + "\n" + micro + " \\| step_microstep: " + number +
                            "\n\\[Rank 0\\] time \\(ms\\) \\| fwd: " + number + " \\| bwd: " + number +
                            " \\| bwd_inner: " + number + " \\| data: " + number + " \\| step: " + number + "\n"));
}

TEST(EngineCheckpoint, ResumesBitForBit) {
  const test::TemporaryFolder folder;
  for (const std::string precision : {"", "\"bf16\": {\"enabled\": true}", "\"fp16\": {\"enabled\": true}"}) {
    SmallRun whole(config(precision)), first(config(precision)), second(config(precision), /*weights_seed=*/99);
    whole.steps(10);
    first.steps(4);
    Json mine = Json::object();
    mine["epoch"] = 7;
    first.engine.save_checkpoint(folder.path() / precision.substr(0, 6), "", mine);
    const Json back = second.engine.load_checkpoint(folder.path() / precision.substr(0, 6));
    EXPECT_EQ(back, mine);
    EXPECT_EQ(second.engine.progress().global_steps, 4);
    second.next_batch = 4;
    second.steps(6);
    EXPECT_EQ(second.engine.mean_loss(), whole.engine.mean_loss());
    expect_same_weights(whole.model, second.model, 0.0);
  }
}

TEST(EngineCheckpoint, ResumesAModelThatDrawsRandomNumbersBitForBit) {
  const test::TemporaryFolder folder;
  const auto run_of = [](double dropout) {
    auto run = std::make_unique<SmallRun>(config(""));
    run->model.dropout = dropout;
    testing_support::seed(77);
    return run;
  };
  const auto whole = run_of(0.5);
  whole->steps(6);
  const auto first = run_of(0.5);
  first->steps(3);
  first->engine.save_checkpoint(folder.path());
  const auto second = run_of(0.5);  // from other random numbers, until it loads
  second->engine.load_checkpoint(folder.path());
  second->next_batch = 3;
  second->steps(3);
  expect_same_weights(whole->model, second->model, 0.0);

  const auto without = run_of(0);
  without->steps(6);
  EXPECT_FALSE(without->model.parameters[0].tensor.equal(whole->model.parameters[0].tensor));
}

TEST(EngineCheckpoint, NamesWhatDoesNotFit) {
  const test::TemporaryFolder folder;
  const std::string dir = folder.path();
  SmallRun saved(config(""));
  saved.steps(1);
  EXPECT_EQ(saved.engine.save_checkpoint(dir), "global_step1");

  SmallRun other(config(""), 5);
  const at::Tensor before = other.model.parameters[0].tensor.detach().clone();
  other.model.parameters[0].name = "w1";
  SmallRun renamed(config(""));
  EXPECT_THAT([&] { renamed.engine.load_checkpoint(dir, "global_step7"); },
              ThrowsMessage<RuntimeFault>(HasSubstr("global_step7")));
  EXPECT_THAT([&] { renamed.engine.load_checkpoint(dir + "/nowhere"); },
              ThrowsMessage<RuntimeFault>(HasSubstr("nowhere")));
}

TEST(EngineCheckpoint, RefusesToSaveInTheMiddleOfAStep) {
  const test::TemporaryFolder folder;
  SmallRun run(config("\"gradient_accumulation_steps\": 2"));
  Batch batch = batch_number(0, 4);
  run.engine.backward(run.engine.forward(batch));
  run.engine.step();
  EXPECT_THAT(
      [&] { run.engine.save_checkpoint(folder.path()); },
      ThrowsMessage<RuntimeFault>(HasSubstr("save_checkpoint in the middle of a step (1 of 2 micro-batches done)")));
}

}  // namespace
}  // namespace capstan
