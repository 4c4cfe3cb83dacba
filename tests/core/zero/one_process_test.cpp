// Stage 3 in one process: where parameters are offloaded, it holds parts alone, and gives what it gives without.

#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "core/checkpoint/checkpoint.hpp"
#include "tests/core/zero/mixed_model.hpp"
#include "tests/support/temporary_folder.hpp"

namespace capstan {
namespace {

using test::MixedRun;

std::string config_of(const std::string& optimizer, const std::string& zero, const std::string& more) {
  return R"({"train_micro_batch_size_per_gpu": 12, "steps_per_print": null, "optimizer": )" + optimizer +
         R"(, "zero_optimization": {"stage": 3)" + zero + "}" + more + "}";
}

std::unique_ptr<MixedRun> run_of(const std::string& config, bool offloads, bool deferred = false) {
  return std::make_unique<MixedRun>(config, Communicator::alone(), 1, 40'000, std::vector<ModuleRecord>{},
                                    deferred ? std::make_shared<DeferredValues>(1) : nullptr, [&](Config& read) {
                                      read.zero.stage = offloads ? 3 : 0;
                                      if (offloads) read.parameter_offload = ComponentChoice{"offload", "cpu"};
                                    });
}

constexpr const char* kAdamW = R"({"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0.1}})";
constexpr const char* kLamb = R"({"type": "Lamb", "params": {"lr": 0.01, "weight_decay": 0.1}})";
constexpr const char* kSgd = R"({"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9}})";
constexpr const char* kAllAway = R"(, "stage3_param_persistence_threshold": 0, "sub_group_size": 5000)";
constexpr const char* kSomeStay = R"(, "stage3_param_persistence_threshold": 1500, "overlap_comm": false)";

struct Setting {
  const char* optimizer;
  const char* zero;
  const char* more;
  bool deferred = false;  // the model is built without values
};

class Offloading : public testing::TestWithParam<Setting> {};

TEST_P(Offloading, TrainsAsOneThatHoldsEverything) {
  const auto& [optimizer, zero, more, deferred] = GetParam();
  const std::string config = config_of(optimizer, zero, more);
  const auto expected = run_of(config, false);
  const auto losses = expected->steps(4);
  const auto found = run_of(config, true, deferred);
  EXPECT_EQ(found->steps(4), losses);
  EXPECT_TRUE(at::equal(found->values(), expected->values()));
  EXPECT_EQ(found->engine.last_step().grad_norm, expected->engine.last_step().grad_norm);
  EXPECT_EQ(found->engine.last_step().loss_scale, expected->engine.last_step().loss_scale);
  EXPECT_EQ(found->engine.progress().skipped_steps, expected->engine.progress().skipped_steps);
  EXPECT_LT(found->engine.progress().skipped_steps, 4);
  const auto rows = [] { return test::rows_of_stream(0, 12); };
  EXPECT_EQ(found->engine.eval_batch(rows, 2), expected->engine.eval_batch(rows, 2));
}

INSTANTIATE_TEST_SUITE_P(
    OneProcess, Offloading,
    testing::Values(
        Setting{kAdamW, kAllAway, R"(, "gradient_clipping": 0.05)"},
        Setting{kAdamW, kSomeStay, R"(, "gradient_clipping": 0.05, "gradient_accumulation_steps": 3)", true},
        Setting{kLamb, kSomeStay, R"(, "bf16": {"enabled": true}, "gradient_clipping": 0.05)", true},
        Setting{kSgd, kAllAway, R"(, "bf16": {"enabled": true}, "gradient_accumulation_steps": 3)"},
        Setting{kAdamW, kAllAway, R"(, "bf16": {"enabled": true}, "gradient_accumulation_steps": 3,
                "data_types": {"grad_accum_dtype": "fp32"}, "communication_data_type": "fp16")",
                true},
        Setting{kAdamW, kSomeStay,
                R"(, "fp16": {"enabled": true, "initial_scale_power": 15}, "gradient_clipping": 0.1)", true},
        Setting{kSgd, R"(, "zero_quantized_weights": true, "zero_quantized_nontrainable_weights": true)",
                R"(, "fp16": {"enabled": true, "loss_scale": 128}, "gradient_accumulation_steps": 3)"}));

TEST(OneProcess, LoadsWhatOneThatHoldsEverythingHasSavedAndTheOtherWayRound) {
  for (const bool offloads : {false, true}) {
    const std::string config = config_of(kAdamW, kSomeStay, offloads ? R"(, "bf16": {"enabled": true})" : "");
    const TemporaryFolder folder;
    const auto saved = run_of(config, offloads), loaded = run_of(config, !offloads);
    saved->steps(2);
    saved->engine.save_checkpoint(folder.path());
    loaded->engine.load_checkpoint(folder.path());
    EXPECT_EQ(loaded->steps(2), saved->steps(2)) << offloads;
    EXPECT_TRUE(at::equal(loaded->values(), saved->values())) << offloads;
  }
}

TEST(OneProcess, HasNoMemoryForParametersBetweenTheirUses) {
  const auto run = run_of(config_of(kAdamW, kSomeStay, ""), true);
  run->step();
  for (const NamedTensor& parameter : run->model.parameters) {
    if (parameter.name == "large") {
      EXPECT_THROW((void)parameter.tensor.const_data_ptr(), c10::Error);
    } else if (parameter.name == "twice") {
      EXPECT_NE(parameter.tensor.const_data_ptr(), nullptr);
    }
  }
}

}  // namespace
}  // namespace capstan
