// What the other ranks do when one is killed, and what is left of the run.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <optional>

#include "core/checkpoint/checkpoint.hpp"
#include "tests/core/data/temporary_folder.hpp"
#include "tests/core/zero/mixed_model.hpp"
#include "tests/support/ranks.hpp"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using test::MixedRun;
using testing::HasSubstr;

std::string config_of(int ranks) {
  return R"({"train_micro_batch_size_per_gpu": )" + std::to_string(6 / ranks) +
         R"(, "steps_per_print": null, "optimizer": {"type": "AdamW"}, "zero_optimization": {"stage": 2}})";
}

[[noreturn]] void die() {
  kill(getpid(), SIGKILL);
  for (;;) pause();
}

Batch batch_of(const MixedRun& run) {
  return test::rows_of_stream(run.engine.progress().global_samples, run.engine.config().batch.micro_batch_size);
}

void die_in_forward(MixedRun& run, const fs::path&) {
  run.engine.train_batch([&]() -> Batch { die(); });
}

void die_in_backward(MixedRun& run, const fs::path&) {
  Batch batch = batch_of(run);
  const at::Tensor loss = run.engine.forward(batch);
  run.model.parameters.front().tensor.register_hook([](const at::Tensor&) { die(); });
  run.engine.backward(loss);
}

void die_in_a_collective(MixedRun& run, const fs::path&) {
  // The others are in the step's exchange, and wait for this rank.
  Batch batch = batch_of(run);
  run.engine.backward(run.engine.forward(batch));
  die();
}

void die_in_save(MixedRun& run, const fs::path& dir) {
  run.step();
  // Its file is larger, so that the kernel says so in the middle of it.
  signal(SIGXFSZ, [](int) { die(); });
  rlimit limit{};
  getrlimit(RLIMIT_FSIZE, &limit);
  limit.rlim_cur = 1000;
  setrlimit(RLIMIT_FSIZE, &limit);
  run.engine.save_checkpoint(dir);
}

struct Place {
  const char* name;
  void (*die)(MixedRun&, const fs::path&);
};

class KilledRank : public testing::TestWithParam<Place> {};

TEST_P(KilledRank, StopsTheOthersWithASentenceAndLeavesTheLastCheckpoint) {
  // The ranks are this test in processes of their own, which find the folder in their environment.
  const char* known = getenv("CAPSTAN_TEST_FOLDER");
  std::optional<test::TemporaryFolder> folder;
  if (known == nullptr) {
    folder.emplace();
    setenv("CAPSTAN_TEST_FOLDER", folder->path().c_str(), 1);
  }
  const fs::path dir = known ? known : folder->path().string();
  const auto results = test::run_ranks(3, [&](Communicator& communicator) {
    MixedRun run(config_of(3), {&communicator, [](Communicator*) {}});
    run.steps(2);
    run.engine.save_checkpoint(dir);
    if (communicator.rank() == 1) GetParam().die(run, dir);
    run.step();
    run.engine.save_checkpoint(dir);
    run.steps(1000);
  });
  unsetenv("CAPSTAN_TEST_FOLDER");

  EXPECT_EQ(results[1].signal, SIGKILL);
  for (const int survivor : {0, 2}) {
    const auto& result = results[static_cast<std::size_t>(survivor)];
    EXPECT_EQ(result.exit_code, 3);
    EXPECT_THAT(result.err, HasSubstr("rank " + std::to_string(survivor) + ": collective '"));
  }
  EXPECT_THAT(results[0].err + results[2].err, HasSubstr("rank 1"));
  MixedRun alone(config_of(1), Communicator::alone());
  alone.engine.load_checkpoint(dir);
  EXPECT_EQ(alone.engine.progress().global_steps, 2);
  alone.step();
}

INSTANTIATE_TEST_SUITE_P(Places, KilledRank,
                         testing::Values(Place{"forward", die_in_forward}, Place{"backward", die_in_backward},
                                         Place{"collective", die_in_a_collective}, Place{"save", die_in_save}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace capstan
