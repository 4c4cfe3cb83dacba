#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>

#include "core/checkpoint/checkpoint.hpp"
#include "core/errors.hpp"
#include "tests/core/data/temporary_folder.hpp"
#include "tests/core/zero/mixed_model.hpp"
#include "tests/support/ranks.hpp"

namespace capstan {
namespace {

using test::MixedRun;
using testing::HasSubstr;

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
        R"({"stage": 2, "reduce_bucket_size": 1})", R"({"stage": 2, "reduce_bucket_size": 3000, "overlap_comm": true})",
        R"({"stage": 3})", R"({"stage": 3, "reduce_bucket_size": 3000, "overlap_comm": false})"}) {
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

/// A parameter that some micro-batches use on some ranks is among them.
TEST(Accumulation, GivesTheSameBitsAtStages0And1AndAtStages2And3) {
  test::expect_on_ranks(3, [](Communicator& communicator) {
    for (const char* precision : {"", R"(, "bf16": {"enabled": true})"}) {
      const auto values_of = [&](const std::string& zero) {
        MixedRun run(config_of(3, kSgd, zero, R"(, "gradient_accumulation_steps": 3)" + std::string(precision)),
                     shared(communicator), /*seed=*/2, /*largest=*/5000);
        run.steps(2);
        return run.values();
      };
      const at::Tensor before = values_of(R"({"stage": 0})"), after = values_of(R"({"stage": 2})");
      EXPECT_FALSE(at::equal(before, after));
      for (const char* zero : {R"({"stage": 0, "overlap_comm": true, "reduce_bucket_size": 1})",
                               R"({"stage": 1, "reduce_bucket_size": 1})",
                               R"({"stage": 1, "reduce_bucket_size": 3000, "overlap_comm": true})"}) {
        EXPECT_TRUE(at::equal(values_of(zero), before)) << zero << precision;
      }
      for (const char* zero :
           {R"({"stage": 2, "reduce_bucket_size": 1})", R"({"stage": 3, "reduce_bucket_size": 3000})",
            R"({"stage": 3, "overlap_comm": false})"}) {
        EXPECT_TRUE(at::equal(values_of(zero), after)) << zero << precision;
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, EveryStage, testing::Values(2, 3, 4));

/// Ranks gather together, so that at stage 3 all of them must use what comes and goes.
void expect_same_at_stage_3(Communicator& communicator, const Variant& variant, std::uint64_t seed) {
  const auto run = [&](const char* zero, at::Tensor* values) {
    MixedRun one(config_of(communicator.size(), variant.optimizer, zero, variant.more), shared(communicator), seed);
    one.model.skips = false;
    const auto losses = one.steps(4);
    *values = one.values();
    return losses;
  };
  at::Tensor expected, values;
  const auto losses = run(R"({"stage": 2})", &expected);  // which adds micro-batches up as stage 3 does
  for (const char* zero :
       {R"({"stage": 3, "stage3_param_persistence_threshold": 0})",
        R"({"stage": 3, "stage3_param_persistence_threshold": 0, "stage3_max_reuse_distance": 0,
            "stage3_prefetch_bucket_size": 0, "overlap_comm": false, "reduce_bucket_size": 1})",
        R"({"stage": 3, "stage3_param_persistence_threshold": 0, "stage3_max_reuse_distance": 3000,
            "stage3_max_live_parameters": 50000, "stage3_prefetch_bucket_size": 4000})",
        R"({"stage": 3, "stage3_param_persistence_threshold": 1000, "stage3_model_persistence_threshold": 1500,
            "stage3_max_reuse_distance": 100000, "stage3_allgather_sequential": true})"}) {
    EXPECT_EQ(run(zero, &values), losses) << zero;
    EXPECT_TRUE(at::equal(values, expected)) << variant.optimizer << variant.more << zero << " seed " << seed;
  }
}

TEST_P(EveryStage, GivesTheSameParametersWhenTheyComeAndGo) {
  test::expect_on_ranks(GetParam(), [](Communicator& communicator) {
    expect_same_at_stage_3(communicator, {kAdamW, R"(, "gradient_clipping": 0.05)"}, 1);
    expect_same_at_stage_3(communicator, {kAdamW, R"(, "gradient_accumulation_steps": 2)"}, 2);
    expect_same_at_stage_3(communicator, {kLamb, R"(, "bf16": {"enabled": true})"}, 3);
    expect_same_at_stage_3(communicator, {kSgd, R"(, "fp16": {"enabled": true, "loss_scale": 128})"}, 4);
  });
}

TEST_P(EveryStage, TakesTheValuesOfTheRankThatWroteThem) {
  test::expect_on_ranks(GetParam(), [](Communicator& communicator) {
    for (const char* more : {"", R"(, "bf16": {"enabled": true})"}) {
      at::Tensor expected;
      for (const char* zero : {R"({"stage": 0})", R"({"stage": 1})", R"({"stage": 2})",
                               R"({"stage": 3, "stage3_param_persistence_threshold": 3000})"}) {
        MixedRun run(config_of(communicator.size(), kAdamW, zero, more), shared(communicator));
        run.model.skips = false;
        run.step();
        {
          const at::NoGradGuard no_grad;
          const GatherScope held = run.engine.gather({"large", "transposed", "scalar", "pair.b"}, 1);
          for (const NamedTensor& parameter : run.model.parameters) {
            if (parameter.name != "large" && parameter.name != "transposed") continue;
            at::Tensor(parameter.tensor).fill_(communicator.rank() == 1 ? 64 : 7);
          }
        }
        EXPECT_EQ(run.values().eq(64).sum().item<std::int64_t>(),
                  run.model.parameters[3].tensor.numel() + run.model.parameters[4].tensor.numel());
        run.step();
        if (!expected.defined()) expected = run.values();
        EXPECT_TRUE(at::equal(run.values(), expected)) << zero << more;
      }
    }
  });
}

TEST(Gather, NamesWhatItCannotFind) {
  MixedRun run(config_of(1, kAdamW, R"({"stage": 3})"), Communicator::alone());
  EXPECT_THAT([&] { run.engine.gather({"larger"}); },
              testing::ThrowsMessage<RuntimeFault>(HasSubstr("has no parameter 'larger'")));
  EXPECT_THAT([&] { run.engine.gather({}, 1); }, testing::ThrowsMessage<RuntimeFault>(HasSubstr("there is no rank 1")));
}

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
          EXPECT_NEAR(losses[i], expected[i], 2e-6 * std::max(1.0, std::abs(expected[i])))
              << optimizer << zero << " step " << i;
        }
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, EveryWorld, testing::Values(2, 3, 4));

/// A folder that all ranks know; rank 0 has made it.
std::string shared_folder(Communicator& communicator, std::optional<test::TemporaryFolder>& folder) {
  if (communicator.rank() == 0) folder.emplace();
  return communicator.all_gather_text("test: folder", folder ? folder->path().string() : "").front();
}

std::string failure_of(const std::string& dir) {
  try {
    read_checkpoint(dir, latest_tag(dir));
  } catch (const RuntimeFault& fault) {
    return fault.what();
  }
  return "none";
}

TEST(Checkpoint, OfAnyStageAndWorldIsLoadedByAnyOther) {
  test::expect_on_ranks(3, [](Communicator& communicator) {
    std::optional<test::TemporaryFolder> folder;
    const std::string dir = shared_folder(communicator, folder);
    const char* precision = R"(, "bf16": {"enabled": true})";
    for (const char* optimizer : {kAdamW, kLamb}) {
      MixedRun saved(config_of(3, optimizer, R"({"stage": 2, "reduce_bucket_size": 9000})", precision),
                     shared(communicator));
      saved.steps(2);
      saved.engine.save_checkpoint(dir);
      saved.steps(2);

      for (const char* zero : {R"({"stage": 0})", R"({"stage": 1, "reduce_bucket_size": 1})"}) {
        MixedRun same(config_of(3, optimizer, zero, precision), shared(communicator));
        same.engine.load_checkpoint(dir);
        same.steps(2);
        EXPECT_TRUE(at::equal(same.values(), saved.values())) << zero;
      }
      // One process reads what three wrote, and three what one wrote.
      MixedRun alone(config_of(1, optimizer, R"({"stage": 0})", precision), Communicator::alone());
      alone.engine.load_checkpoint(dir);
      MixedRun three(config_of(3, optimizer, R"({"stage": 1})", precision), shared(communicator));
      three.engine.load_checkpoint(dir);
      EXPECT_TRUE(at::equal(alone.values(), three.values()));
      if (communicator.rank() == 0) alone.engine.save_checkpoint(dir, "alone");
      communicator.all_gather_text("test: saved", "");
      three.steps(1);
      three.engine.load_checkpoint(dir, "alone");
      EXPECT_TRUE(at::equal(alone.values(), three.values()));
      EXPECT_EQ(three.engine.progress().global_samples, alone.engine.progress().global_samples);
    }
    communicator.all_gather_text("test: end", "");
  });
}

TEST(Checkpoint, NamesARanksFileThatIsMissingCutOffOrSwapped) {
  test::expect_on_ranks(2, [](Communicator& communicator) {
    namespace fs = std::filesystem;
    std::optional<test::TemporaryFolder> folder;
    const std::string dir = shared_folder(communicator, folder);
    MixedRun run(config_of(2, kAdamW, R"({"stage": 2})"), shared(communicator));
    run.step();
    const fs::path tag = fs::path(dir) / run.engine.save_checkpoint(dir);
    if (communicator.rank() == 0) {
      EXPECT_EQ(failure_of(dir), "none");
      const fs::path first = tag / "rank_00000.safetensors", second = tag / "rank_00001.safetensors";
      fs::copy_file(second, tag / "kept");
      fs::remove(second);
      EXPECT_THAT(failure_of(dir), HasSubstr("rank_00001.safetensors': it is missing."));
      fs::copy_file(tag / "kept", second);
      fs::resize_file(second, fs::file_size(second) - 1);
      EXPECT_THAT(failure_of(dir), HasSubstr("it was cut off."));
      fs::copy_file(first, second, fs::copy_options::overwrite_existing);
      EXPECT_THAT(failure_of(dir), HasSubstr("rank_00001.safetensors': it is 'rank_00000.safetensors' under another "
                                             "name."));
    }
    communicator.all_gather_text("test: end", "");
  });
}

TEST(Checkpoint, ComparesTheRanksTags) {
  test::expect_on_ranks(2, [](Communicator& communicator) {
    std::optional<test::TemporaryFolder> folder;
    const std::string dir = shared_folder(communicator, folder);
    const std::string mine = "tag" + std::to_string(communicator.rank());
    MixedRun warned(config_of(2, kAdamW, R"({"stage": 1})"), shared(communicator));
    EXPECT_EQ(warned.engine.save_checkpoint(dir, mine), "tag0");
    MixedRun strict(config_of(2, kAdamW, R"({"stage": 1})", R"(, "checkpoint": {"tag_validation": "fail"})"),
                    shared(communicator));
    EXPECT_THAT(
        [&] { strict.engine.save_checkpoint(dir, mine); },
        testing::ThrowsMessage<RuntimeFault>(HasSubstr("checkpoint tag: rank 1 saves 'tag1' and rank 0 'tag0'.")));
    communicator.all_gather_text("test: end", "");
  });
}

TEST(SeveralProcesses, AreRefusedWhatTheyCannotDo) {
  test::expect_on_ranks(2, [](Communicator& communicator) {
    MixedRun run(config_of(2, kAdamW, R"({"stage": 1, "ignore_unused_parameters": false})"), shared(communicator));
    EXPECT_THAT([&] { run.step(); }, testing::ThrowsMessage<RuntimeFault>(
                                         HasSubstr("parameter 'unused' got no gradient at step 0, and "
                                                   "zero_optimization.ignore_unused_parameters is false. Freeze it")));
  });
}

class AFailingRank : public testing::TestWithParam<const char*> {};

TEST_P(AFailingRank, StopsTheOthersWithItsSentence) {
  const auto results = test::run_ranks(2, [](Communicator& communicator) {
    MixedRun run(config_of(2, kAdamW, GetParam()), shared(communicator));
    run.steps(2);
    if (communicator.rank() == 1) {
      communicator.tell_failure("no memory for the forward pass.");
      throw RuntimeFault("no memory for the forward pass.");
    }
    run.step();
  });
  EXPECT_EQ(results[0].exit_code, 3);
  EXPECT_THAT(results[0].err, HasSubstr("rank 0: collective 'step 2, gradient bucket 0' failed: rank 1 stopped: no "
                                        "memory for the forward pass."));
}

INSTANTIATE_TEST_SUITE_P(Stages, AFailingRank,
                         testing::Values(R"({"stage": 1})",
                                         R"({"stage": 2, "reduce_bucket_size": 3000, "overlap_comm": true})"));

class AGather : public testing::TestWithParam<const char*> {};

TEST_P(AGather, FailsInTheOperatorThatNeededAPartOfALostRank) {
  const auto results = test::run_ranks(2, [](Communicator& communicator) {
    const std::string zero = std::string(R"({"stage": 3, "stage3_param_persistence_threshold": 0,
        "stage3_max_reuse_distance": 0, "overlap_comm": )") +
                             GetParam() + "}";
    MixedRun run(config_of(2, kAdamW, zero), shared(communicator));
    run.model.skips = false;
    run.steps(2);
    if (communicator.rank() == 1) throw RuntimeFault("no memory for the forward pass.");
    run.step();
  });
  EXPECT_NE(results[0].exit_code, 0);
  EXPECT_THAT(results[0].err, testing::ContainsRegex("rank 0: collective 'step 2, gather of .*' failed: "));
}

INSTANTIATE_TEST_SUITE_P(Overlap, AGather, testing::Values("true", "false"));

TEST(SeveralProcesses, AgreeToStop) {
  test::expect_on_ranks(2, [](Communicator& communicator) {
    MixedRun run(config_of(2, kAdamW, R"({"stage": 1})"), shared(communicator));
    run.step();
    EXPECT_FALSE(run.engine.stop_agreed());
    if (communicator.rank() == 1) run.engine.ask_to_stop();
    run.step();
    EXPECT_TRUE(run.engine.stop_agreed());
  });
}

}  // namespace
}  // namespace capstan
