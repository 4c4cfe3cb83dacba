// Optimizers that communicate by themselves, in engines of several processes.
#include <ATen/ops/allclose.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>

#include "tests/core/data/temporary_folder.hpp"
#include "tests/core/zero/mixed_model.hpp"
#include "tests/support/ranks.hpp"

namespace capstan {
namespace {

using test::MixedRun;
using ::testing::Each;
using ::testing::HasSubstr;

std::shared_ptr<Communicator> shared(Communicator& communicator) {
  return {&communicator, [](Communicator*) {}};
}

/// Freezes after 3 updates, or 4.
std::string config_of(int ranks, const std::string& type, int stage = 0, const std::string& more = "") {
  const std::string freeze = type == "ZeroOneAdam"
                                 ? R"("var_freeze_step": 3, "local_step_scaler": 2, "local_step_clipper": 4)"
                                 : R"("freeze_step": 3)";
  return R"({"train_micro_batch_size_per_gpu": )" + std::to_string(12 / ranks) +
         R"(, "steps_per_print": null, "optimizer": {"type": ")" + type + R"(", "params": {"lr": 0.001, )" + freeze +
         R"(}}, "zero_optimization": {"stage": )" + std::to_string(stage) + "}" + more + "}";
}

/// The run's parameters, and whether all ranks have the same.
std::string bits_of(MixedRun& run) {
  const at::Tensor values = run.values().contiguous();
  return {static_cast<const char*>(values.const_data_ptr()), static_cast<std::size_t>(values.nbytes())};
}
void expect_same_on_all_ranks(Communicator& communicator, const std::string& text) {
  const auto all = communicator.all_gather_text("test", text);
  EXPECT_TRUE(std::all_of(all.begin(), all.end(), [&](const std::string& one) { return one == all[0]; }));
}

void synchronize(MixedRun& run) {
  run.engine.eval_batch([] { return test::rows_of_stream(0, 1); }, 1);
}

/// Other bad plugins have a component of the same type.
void find_bad_ranks_in(const test::TemporaryFolder& folder) {
  std::filesystem::copy_file(CAPSTAN_TEST_BUILD_DIR "/tests/bad_plugins/libcapstan_bad_ranks.so",
                             folder.path() / "libcapstan_bad_ranks.so");
  setenv("CAPSTAN_PLUGIN_PATH", folder.path().c_str(), 1);
}

/// Sums in groups of ranks what SGD gets as the engine's mean.
TEST(OwnCommunicationInGroups, IsThatOfAllRanks) {
  const test::TemporaryFolder folder;
  find_bad_ranks_in(folder);
  for (const int ranks : {2, 3, 4}) {
    test::expect_on_ranks(ranks, [](Communicator& communicator) {
      const auto config = [&](const std::string& type, const std::string& params) {
        return R"({"train_micro_batch_size_per_gpu": )" + std::to_string(12 / communicator.size()) +
               R"(, "steps_per_print": null, "gradient_clipping": 0, "optimizer": {"type": ")" + type +
               R"(", "params": {"lr": 0.01)" + params + "}}}";
      };
      MixedRun grouped(config("Bad", ""), shared(communicator));
      MixedRun plain(config("SGD", R"(, "momentum": 0.9)"), shared(communicator));
      grouped.model.skips = plain.model.skips = false;
      grouped.steps(4);
      plain.steps(4);
      EXPECT_TRUE(at::allclose(grouped.values(), plain.values(), 1e-5, 1e-6));
      expect_same_on_all_ranks(communicator, bits_of(grouped));
    });
  }
}

TEST(OwnCommunicationInGroups, KnowsTwoKindsOfGradientsAlone) {
  const test::TemporaryFolder folder;
  find_bad_ranks_in(folder);
  setenv("CAPSTAN_BAD", "no_mode", 1);
  test::expect_on_ranks(2, [](Communicator& communicator) {
    MixedRun run(R"({"train_micro_batch_size_per_gpu": 6, "steps_per_print": null, "optimizer": {"type": "Bad"}})",
                 shared(communicator));
    EXPECT_THAT([&] { run.step(); },
                testing::ThrowsMessage<PluginError>(HasSubstr(
                    "libcapstan_bad_ranks.so): gradient_mode answers 2 for update 0; it must be 0 (the mean over "
                    "ranks) or 1 (each rank's own). Tell the plugin's author.")));
  });
  unsetenv("CAPSTAN_BAD");
}

TEST(OwnCommunicationAlone, DoesNotBeginItsStatesAnewAfterUpdates) {
  for (const std::string type : {"OneBitAdam", "OneBitLamb", "ZeroOneAdam"}) {
    const test::TemporaryFolder folder;
    MixedRun saved(config_of(1, type), Communicator::alone()), resumed(config_of(1, type), Communicator::alone());
    saved.model.skips = resumed.model.skips = false;
    saved.steps(2);
    saved.engine.save_checkpoint(folder.path());
    EXPECT_THAT(
        [&] { resumed.engine.load_checkpoint(folder.path(), "", nullptr, {.optimizer_states = false}); },
        testing::ThrowsMessage<RuntimeFault>(HasSubstr("was saved after update 2, and " + type +
                                                       " counts the warm-up of its states from the first update of "
                                                       "the run on, so it cannot begin them anew. Start from the "
                                                       "weights alone with --init-from")));
  }
}

class OwnCommunication : public testing::TestWithParam<int> {};

TEST_P(OwnCommunication, LeavesOneModelOnAllRanks) {
  test::expect_on_ranks(GetParam(), [](Communicator& communicator) {
    for (const char* type : {"OneBitAdam", "OneBitLamb", "ZeroOneAdam"}) {
      for (const char* more :
           {"", R"(, "gradient_accumulation_steps": 2, "gradient_clipping": 0.05)", R"(, "bf16": {"enabled": true})"}) {
        MixedRun run(config_of(communicator.size(), type, 0, more), shared(communicator));
        run.model.skips = false;
        const auto losses = run.steps(14);
        synchronize(run);
        expect_same_on_all_ranks(communicator, bits_of(run));
        for (const double loss : losses) EXPECT_TRUE(std::isfinite(loss)) << type << more;
      }
    }
  });
}

TEST_P(OwnCommunication, GivesTheSameAtStageOne) {
  test::expect_on_ranks(GetParam(), [](Communicator& communicator) {
    for (const char* type : {"OneBitAdam", "OneBitLamb", "ZeroOneAdam"}) {
      for (const char* more : {R"(, "gradient_clipping": 0.05)", R"(, "bf16": {"enabled": true})"}) {
        MixedRun whole(config_of(communicator.size(), type, 0, more), shared(communicator));
        MixedRun parts(config_of(communicator.size(), type, 1, more), shared(communicator));
        whole.model.skips = parts.model.skips = false;
        const auto losses = whole.steps(10), losses_of_parts = parts.steps(10);
        synchronize(whole);
        synchronize(parts);
        // Norms of layers are sums of parts, whose order rounding shows.
        const double tolerance = type == std::string("OneBitLamb") ? 1e-6 : 0;
        for (std::size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], losses_of_parts[i], tolerance) << type;
        EXPECT_TRUE(at::allclose(whole.values(), parts.values(), tolerance, tolerance)) << type << more;
      }
    }
  });
}

TEST_P(OwnCommunication, GoesOnBitByBitFromACheckpoint) {
  test::expect_on_ranks(GetParam(), [](Communicator& communicator) {
    const std::string folder =
        communicator.all_gather_text("folder", testing::TempDir() + "/own" + std::to_string(::getpid()))[0];
    for (const char* type : {"OneBitAdam", "OneBitLamb", "ZeroOneAdam"}) {
      for (const int at : {2, 7}) {
        MixedRun straight(config_of(communicator.size(), type), shared(communicator));
        MixedRun resumed(config_of(communicator.size(), type), shared(communicator), /*seed=*/1);
        straight.model.skips = resumed.model.skips = false;
        straight.steps(at);
        straight.engine.save_checkpoint(folder);
        resumed.engine.load_checkpoint(folder);
        EXPECT_EQ(straight.steps(8), resumed.steps(8)) << type << " saved after " << at;
        EXPECT_EQ(bits_of(straight), bits_of(resumed)) << type << " saved after " << at;
      }
    }
    communicator.all_gather_text("done", "");
    if (communicator.rank() == 0) std::filesystem::remove_all(folder);
  });
}

TEST_P(OwnCommunication, StartsErrorsAnewWithAnotherNumberOfProcessesAndSaysSoOnce) {
  test::expect_on_ranks(GetParam(), [](Communicator& communicator) {
    const std::string folder =
        communicator.all_gather_text("folder", testing::TempDir() + "/world" + std::to_string(::getpid()))[0];
    if (communicator.rank() == 0) {
      MixedRun alone(config_of(1, "OneBitAdam"), Communicator::alone());
      alone.model.skips = false;
      alone.steps(5);
      alone.engine.save_checkpoint(folder);
    }
    communicator.all_gather_text("saved", "");
    MixedRun run(config_of(communicator.size(), "OneBitAdam"), shared(communicator));
    run.model.skips = false;
    testing::internal::CaptureStderr();
    run.engine.load_checkpoint(folder);
    run.steps(4);
    const std::string told = testing::internal::GetCapturedStderr();
    const std::string notice =
        "worker_error, server_error of optimizer 'OneBitAdam' belong to each rank of 1 and start "
        "anew with " +
        std::to_string(communicator.size()) + ".";
    const auto first = told.find(notice);
    EXPECT_EQ(first != std::string::npos, communicator.rank() == 0) << told;
    if (first != std::string::npos) {
      EXPECT_EQ(told.find(notice, first + 1), std::string::npos) << told;
    }
    expect_same_on_all_ranks(communicator, bits_of(run));
    if (communicator.rank() == 0) std::filesystem::remove_all(folder);
  });
}

TEST_P(OwnCommunication, ClipsByTheRootOfTheMeanSquareOfTheRanksNorms) {
  test::expect_on_ranks(GetParam(), [](Communicator& communicator) {
    MixedRun run(config_of(communicator.size(), "OneBitAdam", 0, R"(, "gradient_clipping": 0.01)"),
                 shared(communicator));
    run.model.skips = false;
    run.steps(5);
    // This rank's own gradient of the next batch.
    const std::int64_t rows = 12 / communicator.size();
    run.model
        .loss(test::rows_of_stream(run.engine.progress().global_samples + communicator.rank() * rows, rows)
                  .tensors.find("x")
                  ->second)
        .backward();
    double squares = 0;
    for (const NamedTensor& parameter : run.model.parameters) {
      at::Tensor& gradient = at::Tensor(parameter.tensor).mutable_grad();
      if (gradient.defined()) squares += std::pow(gradient.norm().item<double>(), 2);
      gradient.reset();
    }
    double mean = 0;
    for (const std::string& one : communicator.all_gather_text("squares", std::to_string(squares))) {
      mean += std::stod(one) / communicator.size();
    }
    run.step();
    EXPECT_NEAR(run.engine.last_step().grad_norm, std::sqrt(mean), 1e-5 * std::sqrt(mean));
  });
}

/// Bytes that this rank sends in one step.
std::map<std::string, std::uint64_t> bytes_of_step(Communicator& communicator, MixedRun& run) {
  const auto before = communicator.log().traffic();
  run.step();
  std::map<std::string, std::uint64_t> bytes;
  for (const auto& [collective, traffic] : communicator.log().traffic()) {
    const auto then = before.find(collective);
    bytes[collective] = traffic.bytes - (then == before.end() ? 0 : then->second.bytes);
  }
  return bytes;
}

TEST_P(OwnCommunication, SendsAThirtySecondOfWhatAnAllReduceSends) {
  test::expect_on_ranks(GetParam(), [](Communicator& communicator) {
    MixedRun run(config_of(communicator.size(), "OneBitLamb"), shared(communicator), 1, /*largest=*/4'000'000);
    run.model.skips = false;
    auto full = bytes_of_step(communicator, run);
    run.steps(4);
    auto compressed = bytes_of_step(communicator, run);
    EXPECT_GT(full["all_reduce"], 0u);
    EXPECT_EQ(compressed["all_reduce"], 0u);
    // Together: ranks own parts of different sizes.
    const auto all = [&](const auto& bytes) {
      std::uint64_t own = 0;
      for (const auto& [collective, count] : bytes) own += count;
      double sum = 0;
      for (const std::string& one : communicator.all_gather_text("bytes", std::to_string(own))) sum += std::stod(one);
      return sum;
    };
    const double sent = all(compressed), wanted = all(full) / 32;
    EXPECT_LE(sent, wanted * 1.02);
    EXPECT_GE(sent, wanted * 0.98);
  });
}

TEST(ZeroOneAdam, SendsATwentiethOfAdamsBytesOverAThousandSteps) {
  test::expect_on_ranks(2, [](Communicator& communicator) {
    MixedRun run(R"({"train_micro_batch_size_per_gpu": 1, "steps_per_print": null, "gradient_clipping": 0,
                     "optimizer": {"type": "ZeroOneAdam", "params": {"lr": 0.0001, "var_freeze_step": 60,
                                   "var_update_scaler": 16, "local_step_scaler": 32, "local_step_clipper": 16}}})",
                 shared(communicator));
    run.model.skips = false;
    const auto sent = [&] { return static_cast<double>(communicator.log().total().bytes); };
    const double start = sent();
    run.step();  // exchanges whole gradients, as each of Adam's steps does
    const double adam = 1000 * (sent() - start);
    run.steps(999);
    const double own = sent() - start;
    EXPECT_GE(adam / own, 20);
    // In 61 updates 16 + 16 + 3 whole gradients, the other 26 compressed; then 32 updates each with an exchange after
    // every one, second, fourth and eighth, and the last 811 with one in 16.
    const double expected = 1000 / (35 + (26 + 32 + 16 + 8 + 4 + 811 / 16.0) / 32);
    EXPECT_NEAR(adam / own, expected, 0.03 * expected);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, OwnCommunication, testing::Values(2, 3, 4));

}  // namespace
}  // namespace capstan
