#include <ATen/autocast_mode.h>
#include <ATen/ops/full_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

std::string config(const std::string& precision, const char* lr = "0.05") {
  return R"({"train_batch_size": 8, "steps_per_print": null, "gradient_clipping": 0, "optimizer": {"type": "AdamW",
    "params": {"lr": )" +
         std::string(lr) + "}}, " + precision + "}";
}

/// Loss and scaled gradient of batch 0 with LibTorch's autocast, switched on by hand.
std::pair<at::Tensor, at::Tensor> by_hand(const SmallModel& model, at::ScalarType dtype, double scale = 1) {
  at::autocast::set_autocast_enabled(at::kCPU, true);
  at::autocast::set_autocast_dtype(at::kCPU, dtype);
  Batch batch = batch_number(0, 8);
  const at::Tensor loss = model.loss(batch.tensors.find("x")->second, batch.tensors.find("y")->second);
  at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(at::kCPU, false);
  loss.backward(at::full_like(loss, scale));
  return {loss.detach(), model.parameters[0].tensor.grad()};
}

class Autocast : public testing::TestWithParam<std::pair<const char*, at::ScalarType>> {};

TEST_P(Autocast, GivesTheLossAndTheGradientsOfLibTorchsOwn) {
  SmallRun run(config(R"("torch_autocast": {"enabled": true, "dtype": ")" + std::string(GetParam().first) + "\"}"));
  const double scale = GetParam().second == at::kHalf ? 65536 : 1;
  SmallModel model;
  model.loss_factor = run.model.loss_factor = 1e-3f;  // for the scale, which makes a large one overflow
  const auto [loss, gradient] = by_hand(model, GetParam().second, scale);
  Batch batch = batch_number(0, 8);
  const at::Tensor ours = run.engine.forward(batch);
  EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
  EXPECT_EQ(ours.item<float>(), loss.item<float>());
  run.engine.backward(ours);
  const at::Tensor& weights = run.model.parameters[0].tensor;
  EXPECT_EQ(weights.scalar_type(), at::kFloat);
  EXPECT_EQ(weights.grad().scalar_type(), at::kFloat);
  EXPECT_TRUE(weights.grad().equal(gradient));
  EXPECT_EQ(run.engine.step().loss_scale, scale);

  SmallRun plain(config("\"gradient_accumulation_steps\": 1"));
  plain.model.loss_factor = 1e-3f;
  EXPECT_NE(plain.engine.forward(batch).item<float>(), loss.item<float>());
}

INSTANTIATE_TEST_SUITE_P(Types, Autocast,
                         testing::Values(std::pair("torch.bfloat16", at::kBFloat16), std::pair("fp16", at::kHalf)));

TEST(Autocast, IsBfloat16WithoutAType) {
  SmallRun run(config(R"("torch_autocast": {"enabled": true})"));
  Batch batch = batch_number(0, 8);
  EXPECT_EQ(run.engine.forward(batch).item<float>(), by_hand(SmallModel(), at::kBFloat16).first.item<float>());
}

TEST(Autocast, CoversEvaluation) {
  SmallRun run(config(R"("torch_autocast": {"enabled": true})"));
  const double loss = run.engine.eval_batch([] { return batch_number(0, 8); }, 1);
  EXPECT_EQ(loss, by_hand(SmallModel(), at::kBFloat16).first.item<double>());
}

TEST(Autocast, InFp16SkipsAnOverflowAndHalvesTheScaleAtOnce) {
  SmallRun run(config(R"("torch_autocast": {"enabled": true, "dtype": "fp16"})"));
  const at::Tensor before = run.model.parameters[0].tensor.detach().clone();
  run.model.loss_factor = 1e30f;
  run.step();
  EXPECT_FALSE(run.engine.last_step().applied);
  EXPECT_TRUE(run.model.parameters[0].tensor.equal(before));
  run.model.loss_factor = 1;
  run.step();
  EXPECT_EQ(run.engine.last_step().loss_scale, 32768);
  EXPECT_TRUE(run.engine.last_step().applied);
}

TEST(Autocast, LeavesAProgramsOwnScopeAsItWas) {
  SmallRun run(config(R"("torch_autocast": {"enabled": true})"));
  at::autocast::set_autocast_enabled(at::kCPU, true);
  at::autocast::set_autocast_dtype(at::kCPU, at::kHalf);
  Batch batch = batch_number(0, 8);
  run.engine.forward(batch);
  EXPECT_TRUE(at::autocast::is_autocast_enabled(at::kCPU));
  EXPECT_EQ(at::autocast::get_autocast_dtype(at::kCPU), at::kHalf);
  at::autocast::set_autocast_enabled(at::kCPU, false);
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
}

/// What a level of amp makes of the precision.
PrecisionConfig amp(const std::string& arguments) {
  PluginIndex plugins;
  return load_config({config(R"("amp": {"enabled": true, )" + arguments + "}"), "test", false}, {}, plugins).precision;
}

TEST(Amp, LevelsAreApexsTable) {
  const PrecisionConfig o0 = amp(R"("opt_level": "O0")"), o1 = amp(R"("opt_level": "O1")"),
                        o2 = amp(R"("opt_level": "O2")"), o3 = amp(R"("opt_level": "O3")");
  EXPECT_EQ(o0.compute, Precision::kFp32);
  EXPECT_EQ(o0.autocast_dtype, "");
  EXPECT_FALSE(o0.scales_loss);

  EXPECT_EQ(o1.compute, Precision::kFp32);
  EXPECT_EQ(o1.autocast_dtype, "float16");
  EXPECT_TRUE(o1.scales_loss);
  EXPECT_EQ(o1.loss_scale, 0);
  EXPECT_EQ(o1.initial_scale_power, 16);
  EXPECT_EQ(o1.loss_scale_window, 2000);
  EXPECT_EQ(o1.hysteresis, 1);
  EXPECT_EQ(o1.max_loss_scale, 16777216);

  EXPECT_EQ(o2.compute, Precision::kFp16);
  EXPECT_EQ(o2.autocast_dtype, "");
  EXPECT_TRUE(o2.keep_batchnorm_fp32);
  EXPECT_TRUE(o2.fp32_masters);
  EXPECT_EQ(o2.loss_scale, 0);

  EXPECT_EQ(o3.compute, Precision::kFp16);
  EXPECT_FALSE(o3.keep_batchnorm_fp32);
  EXPECT_FALSE(o3.fp32_masters);
  EXPECT_EQ(o3.loss_scale, 1);
}

TEST(Amp, SingleArgumentsOverrideTheLevel) {
  const PrecisionConfig given = amp(R"("opt_level": "O2", "cast_model_type": "torch.bfloat16", "master_weights": false,
    "keep_batchnorm_fp32": false, "loss_scale": 128, "patch_torch_functions": true, "cast_model_outputs": "float32")");
  EXPECT_EQ(given.compute, Precision::kBf16);
  EXPECT_EQ(given.autocast_dtype, "bfloat16");
  EXPECT_FALSE(given.keep_batchnorm_fp32);
  EXPECT_FALSE(given.fp32_masters);
  EXPECT_EQ(given.loss_scale, 128);
  EXPECT_EQ(given.output_dtype, "float32");
  EXPECT_EQ(amp(R"("min_loss_scale": 4, "max_loss_scale": 1024)").max_loss_scale, 1024);
}

TEST(Amp, RefusesWhatIsNoScaleOrType) {
  EXPECT_THAT([] { amp(R"("loss_scale": "static")"); },
              ThrowsMessage<ConfigError>(
                  HasSubstr("amp.loss_scale: must be \"dynamic\" or a number above 0, got \"static\".")));
  EXPECT_THAT([] { amp(R"("cast_model_type": "int8")"); },
              ThrowsMessage<ConfigError>(HasSubstr("amp.cast_model_type: must be a type, ")));
  EXPECT_THAT([] { amp(R"("min_loss_scale": 8, "max_loss_scale": 2)"); },
              ThrowsMessage<ConfigError>(HasSubstr("amp.min_loss_scale: the loss scale must be able to move between")));
}

TEST(Amp, O1TrainsAsAutocastInFp16Does) {
  SmallRun amp(config(R"("amp": {"enabled": true})"));
  SmallRun autocast(config(R"("torch_autocast": {"enabled": true, "dtype": "float16"})"));
  for (int i = 0; i < 5; ++i) EXPECT_EQ(amp.step(), autocast.step());
}

TEST(Amp, AutocastsInTheTypeOfA16BitModel) {
  EXPECT_EQ(amp(R"("cast_model_type": "torch.bfloat16")").autocast_dtype, "bfloat16");
  EXPECT_EQ(amp(R"("cast_model_type": "torch.float16")").autocast_dtype, "float16");
  EXPECT_EQ(amp(R"("cast_model_type": "float32")").autocast_dtype, "float16");
}

/// A loss scale that is a power of two changes no bit of a bfloat16 gradient.
TEST(Amp, O1OfABfloat16ModelTrainsAsBf16Does) {
  SmallRun amp(config(R"("amp": {"enabled": true, "cast_model_type": "torch.bfloat16"})"));
  SmallRun bf16(config(R"("bf16": {"enabled": true}, "data_types": {"grad_accum_dtype": "bf16"})"));
  for (int i = 0; i < 20; ++i) EXPECT_EQ(amp.step(), bf16.step());
  EXPECT_EQ(amp.engine.last_step().loss_scale, 65536);
}

TEST(Amp, StaysAtItsCeiling) {
  SmallRun run(config(R"("amp": {"enabled": true, "max_loss_scale": 256})"));
  run.step();
  EXPECT_EQ(run.engine.last_step().loss_scale, 256);
}

TEST(Amp, O2KeepsBatchNormalisationInFp32) {
  const std::string level = R"("amp": {"enabled": true, "opt_level": "O2"})";
  SmallRun cast(config(level));
  EXPECT_EQ(cast.model.parameters[0].tensor.scalar_type(), at::kHalf);
  SmallRun kept(config(level), 3, {{"", "torch::nn::BatchNorm1dImpl"}});
  EXPECT_EQ(kept.model.parameters[0].tensor.scalar_type(), at::kFloat);
}

TEST(Amp, WithoutMastersUpdatesSmallerThanTheTypeHoldsAreLost) {
  // Twenty updates of 1e-5 add up to more than half a unit of fp16 at 0.3, one alone does not.
  const auto moved = [](const char* level) {
    SmallRun run(
        config(R"("amp": {"enabled": true, "loss_scale": 64, "opt_level": ")" + std::string(level) + "\"}", "1e-5"));
    const at::Tensor before = run.model.parameters[0].tensor.detach().clone();
    run.steps(20);
    const at::Tensor large = before.abs().gt(0.3);
    return run.model.parameters[0].tensor.detach().ne(before).logical_and(large).any().item<bool>();
  };
  EXPECT_TRUE(moved("O2"));
  EXPECT_FALSE(moved("O3"));
}

TEST(Amp, CastsTheLossAsToldTo) {
  SmallRun run(config(R"("amp": {"enabled": true, "opt_level": "O0", "cast_model_outputs": "float16"})"));
  Batch batch = batch_number(0, 8);
  EXPECT_EQ(run.engine.forward(batch).scalar_type(), at::kHalf);
}

}  // namespace
}  // namespace capstan
