// Masters, gradients and states as a program asks for them; tests/python/test_kept.py holds them against each other at
// every stage.
#include "core/engine/kept_values.hpp"

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "core/errors.hpp"
#include "tests/core/data/temporary_folder.hpp"
#include "tests/core/zero/mixed_model.hpp"
#include "tests/support/ranks.hpp"

namespace capstan {
namespace {

using test::MixedRun;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

std::string config_of(int ranks, const std::string& optimizer, const std::string& zero) {
  return R"({"train_micro_batch_size_per_gpu": )" + std::to_string(12 / ranks) +
         R"(, "steps_per_print": null, "gradient_clipping": 0, "optimizer": )" + optimizer +
         R"(, "zero_optimization": )" + zero + "}";
}

constexpr const char* kAdam = R"({"type": "AdamW", "params": {"lr": 0.01}})";
constexpr const char* kStage3 = R"({"stage": 3, "stage3_param_persistence_threshold": 0})";

std::shared_ptr<Communicator> shared(Communicator& communicator) {
  return {std::shared_ptr<Communicator>(), &communicator};
}

/// The backward of one step, without step().
void backward(MixedRun& run) {
  const std::int64_t rows = 12 / run.engine.world_size();
  Batch batch = test::rows_of_stream(run.engine.rank() * rows, rows);
  run.engine.backward(run.engine.forward(batch));
}

std::int64_t numel_of_large(const MixedRun& run) {
  const auto& all = run.model.parameters;
  return std::find_if(all.begin(), all.end(), [](const NamedTensor& one) { return one.name == "large"; })
      ->tensor.numel();
}

TEST(KeptValues, OfStatesThatHaveNoValueForEachElementAreWholeOrRefused) {
  setenv("CAPSTAN_PLUGIN_PATH", CAPSTAN_TEST_BUILD_DIR "/tests/state_plugins", 1);
  test::expect_on_ranks(2, [](Communicator& communicator) {
    MixedRun run(config_of(2, R"({"type": "Adam8bit", "params": {"lr": 0.01}})", kStage3), shared(communicator));
    run.model.skips = false;
    run.step();
    const KeptValues kept(run.engine);
    EXPECT_EQ(kept.whole({"large", "exp_avg_code"}).numel(), numel_of_large(run));
    EXPECT_EQ(kept.whole({"scalar", "step"}).item<float>(), 1);  // of the rank that updates it
    kept.set_whole({"scalar", "step"}, at::full({1}, 7));
    EXPECT_EQ(kept.whole({"scalar", "step"}).item<float>(), 7);
    const char* const blocks =
        "'exp_avg_scale' of 'large': has one value for a block of elements, which ranks keep in parts. A checkpoint "
        "holds "
        "it whole.";
    EXPECT_THAT([&] { kept.whole({"large", "exp_avg_scale"}); }, ThrowsMessage<RuntimeFault>(blocks));
    EXPECT_THAT(
        [&] {
          kept.set_whole({"large", "exp_avg_scale"}, at::zeros({1}));
        },
        ThrowsMessage<RuntimeFault>(blocks));
    EXPECT_GT(kept.part({"large", "exp_avg_scale"}).numel(), 0);
    EXPECT_THAT(kept.states("large"), ElementsAre("exp_avg_code", "exp_avg_sq_code"));
    // One of the ranks has none of its elements.
    EXPECT_THAT(kept.states("scalar"), ElementsAre("exp_avg", "exp_avg_sq"));
    EXPECT_EQ(kept.whole({"scalar", "exp_avg"}).numel(), 1);
  });
}

TEST(KeptValues, OfGradientsAreWithoutTheLossScale) {
  const auto gradient_of = [](const std::string& more) {
    MixedRun run(R"({"train_micro_batch_size_per_gpu": 12, "steps_per_print": null, "gradient_clipping": 0,
                     "optimizer": )" +
                     std::string(kAdam) + more + "}",
                 Communicator::alone());
    backward(run);
    return KeptValues(run.engine).whole({"large", KeptValues::kGradient});
  };
  const at::Tensor plain = gradient_of(""), half = gradient_of(R"(, "fp16": {"enabled": true, "loss_scale": 512})");
  EXPECT_GT(plain.norm().item<float>(), 0);
  EXPECT_LT((half - plain).norm().item<float>(), 0.01 * plain.norm().item<float>());
}

TEST(KeptValues, OfAParameterWithoutAGradientAreNoGradient) {
  MixedRun run(config_of(1, kAdam, R"({"stage": 0})"), Communicator::alone());
  backward(run);
  const KeptValues kept(run.engine);
  EXPECT_FALSE(kept.whole({"unused", KeptValues::kGradient}).defined());
  EXPECT_TRUE(kept.whole({"large", KeptValues::kGradient}).defined());
  EXPECT_THAT(
      [&] {
        kept.set_whole({"unused", KeptValues::kGradient}, at::zeros({5}));
      },
      ThrowsMessage<RuntimeFault>("gradient of 'unused': this step has none that could get other values."));
  EXPECT_FALSE(kept.trains("frozen"));
  EXPECT_THAT(
      [&] {
        kept.whole({"frozen", KeptValues::kMaster});
      },
      ThrowsMessage<RuntimeFault>("parameter 'frozen' is not trained by this engine."));
  test::expect_on_ranks(2, [](Communicator& communicator) {
    MixedRun two(config_of(2, kAdam, kStage3), shared(communicator));
    two.model.skips = false;
    backward(two);
    EXPECT_FALSE(KeptValues(two.engine).whole({"unused", KeptValues::kGradient}).defined());
    EXPECT_TRUE(KeptValues(two.engine).whole({"large", KeptValues::kGradient}).defined());
  });
}

TEST(KeptValues, OfGradientsThatNoRankHasAreRefused) {
  const test::TemporaryFolder folder;
  test::expect_on_ranks(2, [&](Communicator& communicator) {
    MixedRun run(config_of(2, R"({"type": "OneBitAdam", "params": {"lr": 0.01, "freeze_step": 1}})", R"({"stage": 0})"),
                 shared(communicator));
    run.model.skips = false;
    run.steps(2);
    backward(run);
    EXPECT_THAT(
        [&] {
          KeptValues(run.engine).whole({"large", KeptValues::kGradient});
        },
        ThrowsMessage<RuntimeFault>("gradient of 'large': the optimizer averages gradients by itself, so no rank "
                                    "has the mean before the update."));
    const std::string path = communicator.all_gather_text("folder", folder.path().string())[0];
    const std::string store = R"({"device": "nvme", "nvme_path": ")" + path + "\"";
    MixedRun away(config_of(2, kAdam,
                            R"({"stage": 3, "stage3_param_persistence_threshold": 0, "offload_optimizer": )" + store +
                                R"(}, "offload_param": )" + store + R"(, "max_in_cpu": 0}})"),
                  shared(communicator));
    away.model.skips = false;
    backward(away);
    const KeptValues kept(away.engine);
    EXPECT_THAT(
        [&] {
          kept.whole({"large", KeptValues::kGradient});
        },
        ThrowsMessage<RuntimeFault>(HasSubstr("gradient of 'large': it went to the store that "
                                              "zero_optimization.offload_optimizer names")));
    EXPECT_EQ(kept.whole({"large", KeptValues::kMaster}).numel(), numel_of_large(away));
    EXPECT_EQ(kept.whole({"large", "exp_avg"}).abs().sum().item<float>(), 0);
    // One of the ranks has not even a piece of it.
    EXPECT_THAT(kept.states("scalar"), ElementsAre("exp_avg", "exp_avg_sq"));
  });
}

}  // namespace
}  // namespace capstan
