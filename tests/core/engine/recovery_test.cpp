// A run that has failed and loads a checkpoint goes on as if it had never failed.

#include <ATen/ops/equal.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>

#include "core/checkpoint/checkpoint.hpp"
#include "core/errors.hpp"
#include "tests/core/checkpoint/damage.hpp"
#include "tests/core/data/temporary_folder.hpp"
#include "tests/core/zero/mixed_model.hpp"
#include "tests/support/ranks.hpp"

namespace capstan {
namespace {

using test::MixedRun;
using testing::HasSubstr;
using testing::ThrowsMessage;

/// The communicator of the body, as the engine wants it.
std::shared_ptr<Communicator> shared(Communicator& communicator) {
  return {&communicator, [](Communicator*) {}};
}

/// A folder that all ranks know; rank 0 has made it.
std::string shared_folder(Communicator& communicator, std::optional<test::TemporaryFolder>& folder) {
  if (communicator.rank() == 0) folder.emplace();
  return communicator.all_gather_text("test: folder", folder ? folder->path().string() : "").front();
}

std::string config_of(int ranks, const std::string& zero, const std::string& more = "") {
  return R"({"train_micro_batch_size_per_gpu": )" + std::to_string(12 / ranks) + R"(, "steps_per_print": null,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0.1}}, "zero_optimization": {)" +
         zero + "}" + more + "}";
}

struct Case {
  int ranks;
  const char* zero;
};

struct Detour {
  const char* name;
  void (*go)(MixedRun& run);
  const char* more;  // further keys of the configuration
};

void loss_that_is_not_finite(MixedRun& run) {
  const int ranks = run.engine.world_size();
  const bool last = run.engine.rank() + 1 == ranks;
  run.model.loss_factor = last ? std::numeric_limits<double>::infinity() : 1;
  EXPECT_THAT(
      [&] { run.step(); },
      ThrowsMessage<RuntimeFault>(HasSubstr("the loss is not finite at step 2 (micro-batch 0" +
                                            (ranks == 1 ? ")." : " of rank " + std::to_string(ranks - 1) + ")."))));
  run.model.loss_factor = 1;
}

/// One rank's gradient that is not finite is everybody's.
void gradient_that_is_not_finite(MixedRun& run) {
  const at::Tensor before = run.values().clone();
  run.model.root_of = run.engine.rank() == 0 ? 0 : 1;
  EXPECT_THAT([&] { run.step(); },
              ThrowsMessage<RuntimeFault>(HasSubstr("a gradient is not finite at step 2, though the loss is.")));
  EXPECT_TRUE(at::equal(run.values(), before));
  run.model.root_of.reset();
}

void exception_in_the_model(MixedRun& run) {
  run.model.fails = true;
  EXPECT_THAT([&] { run.step(); }, ThrowsMessage<PluginError>(HasSubstr("out of ideas")));
  run.model.fails = false;
}

void exception_in_backward(MixedRun& run) {
  run.model.in_backward = [] { throw std::runtime_error("no way back"); };
  EXPECT_THAT([&] { run.step(); }, ThrowsMessage<std::runtime_error>(HasSubstr("no way back")));
  run.model.in_backward = nullptr;
}

void micro_batch_without_its_step(MixedRun& run) {
  Batch other = test::rows_of_stream(1000, run.engine.config().batch.micro_batch_size);
  run.engine.backward(run.engine.forward(other));
  run.engine.step();
}

constexpr const char* kNotClipped = R"(, "gradient_clipping": 0)";
constexpr Detour kDetours[] = {
    {"a loss that is not finite", loss_that_is_not_finite, ""},
    {"a gradient that is not finite", gradient_that_is_not_finite, kNotClipped},
    {"a norm that is not finite", gradient_that_is_not_finite, R"(, "gradient_clipping": 1)"},
    {"an exception in the model", exception_in_the_model, ""},
    {"an exception in backward", exception_in_backward, ""},
    {"a micro-batch without its step", micro_batch_without_its_step, R"(, "gradient_accumulation_steps": 2)"},
};

class Recovery : public testing::TestWithParam<Case> {};

TEST_P(Recovery, LoadsACheckpointAndGoesOnAsIfNothingHadHappened) {
  test::expect_on_ranks(GetParam().ranks, [&](Communicator& communicator) {
    std::optional<test::TemporaryFolder> folder;
    const std::string dir = shared_folder(communicator, folder);
    for (const Detour& detour : kDetours) {
      const std::string config = config_of(communicator.size(), GetParam().zero, detour.more);
      MixedRun straight(config, shared(communicator)), run(config, shared(communicator));
      straight.model.skips = run.model.skips = false;  // ranks gather together, so all use what comes and goes
      straight.steps(2);
      run.steps(2);
      run.engine.save_checkpoint(dir);
      detour.go(run);
      run.engine.load_checkpoint(dir);
      EXPECT_EQ(run.steps(2), straight.steps(2)) << detour.name;
      EXPECT_TRUE(at::equal(run.values(), straight.values())) << detour.name;
      EXPECT_EQ(run.engine.progress().global_steps, 4) << detour.name;
    }
    communicator.all_gather_text("test: end", "");
  });
}

TEST_P(Recovery, SkipsAStepOnAllRanksForTheGradientOfOne) {
  test::expect_on_ranks(GetParam().ranks, [&](Communicator& communicator) {
    const std::string more = std::string(kNotClipped) + R"(, "capstan": {"run": {"on_nan": "continue"}})";
    MixedRun run(config_of(communicator.size(), GetParam().zero, more), shared(communicator));
    run.model.skips = false;
    run.step();
    const at::Tensor before = run.values().clone();
    run.model.root_of = communicator.rank() == 0 ? 0 : 1;
    run.step();
    EXPECT_FALSE(run.engine.last_step().applied);
    EXPECT_TRUE(at::equal(run.values(), before));
    run.model.root_of.reset();
    run.step();
    EXPECT_TRUE(run.engine.last_step().applied);
    EXPECT_TRUE(at::isfinite(run.values()).all().item<bool>());
  });
}

/// A file of which all ranks know, without the communicator.
void meet_by_files(const std::string& dir, const char* name, const Communicator& communicator) {
  const auto file = [&](int rank) { return dir + "/" + name + std::to_string(rank); };
  std::ofstream(file(communicator.rank())) << "here";
  for (int rank = 0; rank < communicator.size(); ++rank) {
    while (!std::filesystem::exists(file(rank))) std::this_thread::yield();
  }
}

/// Rank 1 is in another collective, so that those of the step fail on the thread that makes them.
TEST(Recovery, LoadsACheckpointAfterExchangesThatFailed) {
  test::RanksOptions over_network;
  over_network.over_tcp = {0, 1};  // a connection through memory would be closed
  test::expect_on_ranks(
      2,
      [](Communicator& communicator) {
        std::optional<test::TemporaryFolder> folder;
        const std::string dir = shared_folder(communicator, folder);
        for (const char* zero : {R"("stage": 1, "reduce_bucket_size": 3000, "overlap_comm": true)",
                                 R"("stage": 2, "reduce_bucket_size": 3000, "overlap_comm": true)",
                                 R"("stage": 3, "stage3_param_persistence_threshold": 0, "overlap_comm": true)"}) {
          MixedRun straight(config_of(2, zero), shared(communicator)), run(config_of(2, zero), shared(communicator));
          straight.model.skips = run.model.skips = false;
          straight.steps(2);
          run.steps(2);
          run.engine.save_checkpoint(dir);
          straight.values();  // nothing is under way
          if (communicator.rank() == 0) {
            EXPECT_THAT([&] { run.step(); }, ThrowsMessage<std::exception>(HasSubstr("rank 1 is in another one")));
          } else {
            EXPECT_THAT([&] { communicator.all_gather_text("test: elsewhere", ""); },
                        ThrowsMessage<RuntimeFault>(HasSubstr("rank 0 is in another one")));
          }
          meet_by_files(dir, (std::string("failed") + zero[9]).c_str(), communicator);
          run.engine.load_checkpoint(dir);
          EXPECT_EQ(run.steps(2), straight.steps(2)) << zero;
          EXPECT_TRUE(at::equal(run.values(), straight.values())) << zero;
          communicator.all_gather_text("test: next", "");
        }
      },
      over_network);
}

TEST(Recovery, NamesTheRanksWhoseLossIsNotFinite) {
  test::expect_on_ranks(4, [](Communicator& communicator) {
    const int rank = communicator.rank();
    for (const char* precision : {"", R"(, "bf16": {"enabled": true})", R"(, "fp16": {"enabled": true})",
                                  R"(, "torch_autocast": {"enabled": true, "dtype": "float16"})"}) {
      const std::string config =
          config_of(4, R"("stage": 2)", std::string(precision) + R"(, "gradient_accumulation_steps": 2)");
      const auto message_where = [&](const std::function<bool(int micro_batch)>& bad) {
        MixedRun run(config, shared(communicator), /*seed=*/1, /*largest=*/5000);
        for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
          Batch batch = test::rows_of_stream(micro_batch, 3);
          run.model.loss_added = bad(micro_batch) ? NAN : 0;
          run.engine.backward(run.engine.forward(batch));
        }
        try {
          run.engine.step();
        } catch (const RuntimeFault& fault) {
          return std::string(fault.what());
        }
        return std::string("nothing");
      };
      EXPECT_THAT(message_where([&](int micro_batch) { return rank == 2 && micro_batch == 1; }),
                  HasSubstr("the loss is not finite at step 0 (micro-batch 1 of rank 2). "))
          << precision;
      EXPECT_THAT(message_where([&](int micro_batch) { return rank != 2 && micro_batch >= rank % 2; }),
                  HasSubstr("(micro-batch 0 of rank 0, micro-batch 1 of rank 1, micro-batch 1 of rank 3). "));
      EXPECT_THAT(message_where([&](int) { return true; }),
                  HasSubstr("(micro-batch 0 of rank 0, micro-batch 0 of rank 1, micro-batch 0 of rank 2, and of 1 more "
                            "rank). "));
    }
  });
}

/// capstan.run.on_nan does not matter then.
TEST(Overflow, OfBf16SkipsEachSuchStepAndSaysSo) {
  test::expect_on_ranks(1, [](Communicator& communicator) {
    const char* bf16 = R"(, "bf16": {"enabled": true, "check_grad_overflow": true})";
    MixedRun run(config_of(1, R"("stage": 0)", bf16), shared(communicator));
    run.model.root_of = 0;
    for (const std::string step : {"0", "1"}) {
      testing::internal::CaptureStderr();
      run.step();
      EXPECT_THAT(testing::internal::GetCapturedStderr(),
                  HasSubstr("OVERFLOW! Skipping step " + step + ": a gradient is not finite.\n"));
      EXPECT_FALSE(run.engine.last_step().applied);
    }
  });
}

TEST(Recovery, RefusesToGoOnWithAStepThatIsHalfDone) {
  test::expect_on_ranks(1, [](Communicator& communicator) {
    MixedRun run(config_of(1, R"("stage": 0)"), shared(communicator));
    run.step();
    exception_in_backward(run);
    EXPECT_THAT(
        [&] { run.step(); },
        ThrowsMessage<RuntimeFault>(
            "an exception has ended the backward of step 1 half way. Load a checkpoint before training goes on."));
    EXPECT_NO_THROW(run.engine.eval_batch([] { return test::rows_of_stream(0, 6); }, 1));
  });
}

TEST(Load, ReadsOnEachRankOnlyWhatItTakesAndRefusesOnAll) {
  test::expect_on_ranks(2, [](Communicator& communicator) {
    std::optional<test::TemporaryFolder> folder;
    const std::string dir = shared_folder(communicator, folder);
    MixedRun run(config_of(2, R"("stage": 1)"), shared(communicator));
    run.step();
    run.engine.save_checkpoint(dir, "kept");
    if (communicator.rank() == 0) test::damage(dir + "/kept", 1, "large", "param");
    communicator.all_gather_text("test: damaged", "");
    const std::string begin = communicator.rank() == 0 ? "rank 1: checkpoint file '" : "checkpoint file '";
    EXPECT_THAT([&] { run.engine.load_checkpoint(dir, "kept"); },
                ThrowsMessage<RuntimeFault>(
                    testing::AllOf(testing::StartsWith(begin), HasSubstr("of 'large' is damaged: it does not match"))));
    run.step();  // with what it had
    communicator.all_gather_text("test: end", "");
  });
}

/// LibTorch's exception of rank 1, half way through a load, is not left to the others' time-out.
TEST(Load, ThatFailsOnOneRankFailsOnAllAndLeavesNoMixture) {
  test::expect_on_ranks(2, [](Communicator& communicator) {
    std::optional<test::TemporaryFolder> folder;
    const std::string dir = shared_folder(communicator, folder);
    MixedRun run(config_of(2, R"("stage": 1)"), shared(communicator));
    run.step();
    run.engine.save_checkpoint(dir);
    for (const NamedTensor& parameter : run.model.parameters) {
      if (parameter.name != "frozen" || communicator.rank() != 1) continue;
      parameter.tensor.storage().unsafeGetStorageImpl()->set_throw_on_mutable_data_ptr();
    }
    if (communicator.rank() == 1) {
      EXPECT_THROW(run.engine.load_checkpoint(dir), c10::Error);
    } else {
      EXPECT_THAT([&] { run.engine.load_checkpoint(dir); },
                  ThrowsMessage<RuntimeFault>(testing::StartsWith("rank 1: Cannot access data pointer")));
    }
    const auto refuses =
        ThrowsMessage<RuntimeFault>(HasSubstr("is now neither what it was nor what was to be loaded."));
    EXPECT_THAT([&] { run.step(); }, refuses);
    EXPECT_THAT([&] { run.engine.save_checkpoint(dir, "mixture"); }, refuses);
    communicator.all_gather_text("test: end", "");
  });
}

/// Every rank goes on with the random numbers that it would have drawn.
TEST(Resume, ContinuesTheRandomNumbersOfEveryRank) {
  test::expect_on_ranks(2, [&](Communicator& communicator) {
    std::optional<test::TemporaryFolder> folder;
    const std::string dir = shared_folder(communicator, folder);
    const auto run_of = [&](std::uint64_t seed) {
      auto run = std::make_unique<MixedRun>(config_of(2, R"("stage": 2)"), shared(communicator));
      run->model.noisy = true;
      at::manual_seed(seed + static_cast<std::uint64_t>(communicator.rank()));
      return run;
    };
    const auto whole = run_of(50);
    const auto losses = whole->steps(4);
    const auto first = run_of(50);
    first->steps(2);
    first->engine.save_checkpoint(dir);
    const auto second = run_of(90);
    second->engine.load_checkpoint(dir);
    EXPECT_EQ(second->steps(2), (std::vector<double>{losses[2], losses[3]}));
    EXPECT_TRUE(at::equal(second->values(), whole->values()));
    communicator.all_gather_text("test: end", "");
  });
}

/// A generator's state that does not fit, of one rank, is refused by all.
TEST(Resume, RefusesTheGeneratorOfAnyRankOnAllRanks) {
  test::expect_on_ranks(2, [&](Communicator& communicator) {
    std::optional<test::TemporaryFolder> folder;
    const std::string dir = shared_folder(communicator, folder);
    MixedRun run(config_of(2, R"("stage": 0)"), shared(communicator));
    run.step();
    run.engine.save_checkpoint(dir, "good");
    if (communicator.rank() == 0) {
      CheckpointContents contents = read_checkpoint(dir, "good");
      for (CheckpointTensor& tensor : contents.tensors) {
        if (tensor.state == "generator of rank 1") tensor.values = at::zeros_like(tensor.values);
      }
      write_checkpoint(dir, "bad", contents);
    }
    communicator.all_gather_text("test: written", "");
    EXPECT_THAT([&] { run.engine.load_checkpoint(dir, "bad"); },
                ThrowsMessage<RuntimeFault>(HasSubstr("bad: generator of rank 1: is not the state of a random number "
                                                      "generator of this LibTorch (5056 bytes).")));
    run.step();
    communicator.all_gather_text("test: end", "");
  });
}

INSTANTIATE_TEST_SUITE_P(
    Stages, Recovery,
    testing::Values(Case{1, R"("stage": 0)"}, Case{1, R"("stage": 3)"}, Case{2, R"("stage": 0)"},
                    Case{2, R"("stage": 1, "reduce_bucket_size": 3000, "overlap_comm": true)"},
                    Case{2, R"("stage": 2, "reduce_bucket_size": 3000, "overlap_comm": true)"},
                    Case{2, R"("stage": 3, "stage3_param_persistence_threshold": 0, "reduce_bucket_size": 3000,
                               "stage3_max_reuse_distance": 0)"}));

}  // namespace
}  // namespace capstan
