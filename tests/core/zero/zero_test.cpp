#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/core/zero/mixed_model.hpp"
#include "tests/support/ranks.hpp"

namespace capstan {
namespace {

using test::MixedRun;

constexpr const char* kAdamW = R"({"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0.1}})";
constexpr const char* kLamb = R"({"type": "Lamb", "params": {"lr": 0.01, "weight_decay": 0.1}})";
constexpr const char* kSgd = R"({"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9}})";

std::string config_of(int ranks, const std::string& optimizer, const std::string& zero, const std::string& more = "") {
  return R"({"train_micro_batch_size_per_gpu": )" + std::to_string(12 / ranks) + R"(, "steps_per_print": null,
    "optimizer": )" +
         optimizer + R"(, "zero_optimization": )" + zero + more + "}";
}

/// The communicator of the body, as the engine wants it.
std::shared_ptr<Communicator> shared(Communicator& communicator) {
  return {&communicator, [](Communicator*) {}};
}

struct Variant {
  const char* optimizer;
  const char* more;
};

/// Parameters after some steps must not depend on how the work is split.
void expect_same_at_every_stage(Communicator& communicator, const Variant& variant, std::uint64_t seed) {
  MixedRun reference(config_of(communicator.size(), variant.optimizer, R"({"stage": 0})", variant.more),
                     shared(communicator), seed);
  const auto losses = reference.steps(4);
  const at::Tensor expected = reference.values();
  for (const char* zero :
       {R"({"stage": 0, "reduce_bucket_size": 1})", R"({"stage": 0, "overlap_comm": true, "reduce_bucket_size": 3000})",
        R"({"stage": 1})", R"({"stage": 1, "reduce_bucket_size": 1, "allgather_bucket_size": 3000})",
        R"({"stage": 1, "reduce_bucket_size": 3000, "overlap_comm": true})",
        R"({"stage": 1, "grad_hooks": false, "allgather_partitions": false})", R"({"stage": 2})",
        R"({"stage": 2, "reduce_bucket_size": 1})",
        R"({"stage": 2, "reduce_bucket_size": 3000, "overlap_comm": true})"}) {
    MixedRun run(config_of(communicator.size(), variant.optimizer, zero, variant.more), shared(communicator), seed);
    EXPECT_EQ(run.steps(4), losses) << zero;
    EXPECT_TRUE(at::equal(run.values(), expected)) << variant.optimizer << variant.more << zero << " seed " << seed;
    EXPECT_EQ(run.engine.last_step().grad_norm, reference.engine.last_step().grad_norm) << zero;
  }
}

class EveryStage : public testing::TestWithParam<int> {};

TEST_P(EveryStage, GivesTheSameParametersBitForBit) {
  test::expect_on_ranks(GetParam(), [](Communicator& communicator) {
    for (std::uint64_t seed = 1; seed <= 3; ++seed) {
      expect_same_at_every_stage(communicator, {kAdamW, R"(, "gradient_clipping": 0.05)"}, seed);
    }
    expect_same_at_every_stage(communicator, {kLamb, ""}, 4);
    expect_same_at_every_stage(communicator, {kSgd, R"(, "bf16": {"enabled": true})"}, 5);
    expect_same_at_every_stage(
        communicator, {kAdamW, R"(, "fp16": {"enabled": true, "initial_scale_power": 20}, "gradient_clipping": 0.1)"},
        6);
    expect_same_at_every_stage(communicator,
                               {kAdamW, R"(, "bf16": {"enabled": true}, "data_types": {"grad_accum_dtype": "fp32"},
                                   "communication_data_type": "fp32")"},
                               7);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, EveryStage, testing::Values(2, 3, 4));

class EveryWorld : public testing::TestWithParam<int> {};

TEST_P(EveryWorld, HasTheLossesOfOneProcessWithTheSameBatch) {
  test::expect_on_ranks(GetParam(), [](Communicator& communicator) {
    for (const char* optimizer : {kAdamW, kLamb}) {
      MixedRun alone(config_of(1, optimizer, R"({"stage": 0})"), Communicator::alone());
      alone.model.skips = false;  // whole batches decide alike only where they are the same
      const auto expected = alone.steps(50);
      for (const char* zero : {R"({"stage": 0})", R"({"stage": 2, "reduce_bucket_size": 5000})"}) {
        MixedRun run(config_of(communicator.size(), optimizer, zero), shared(communicator));
        run.model.skips = false;
        const auto losses = run.steps(50);
        for (std::size_t i = 0; i < expected.size(); ++i) {
          EXPECT_NEAR(losses[i], expected[i], 2e-6 * std::abs(expected[i])) << optimizer << zero << " step " << i;
        }
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, EveryWorld, testing::Values(2, 3, 4));

}  // namespace
}  // namespace capstan
