#include "core/checkpoint/background_save.hpp"

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <optional>
#include <string>
#include <thread>

#include "core/checkpoint/checkpoint.hpp"
#include "core/errors.hpp"
#include "tests/core/data/temporary_folder.hpp"
#include "tests/core/zero/mixed_model.hpp"
#include "tests/support/ranks.hpp"

namespace {

/// While one lives, what other threads than the first write to files waits.
std::atomic<bool> writers_wait{false};

}  // namespace

/// The C library's, but for that.
extern "C" ssize_t write(int file, const void* bytes, size_t count) {
  if (syscall(SYS_gettid) != getpid()) writers_wait.wait(true);
  return syscall(SYS_write, file, bytes, count);
}

namespace capstan {
namespace {

class HeldWriters {
 public:
  HeldWriters() { writers_wait = true; }
  ~HeldWriters() {
    writers_wait = false;
    writers_wait.notify_all();
  }
};

using test::MixedRun;
using testing::HasSubstr;

constexpr const char* kDecoupled = R"("checkpoint": {"writer": {"decoupled": true}})";

std::string config_of(int ranks, const std::string& more, int stage = 0) {
  return R"({"train_micro_batch_size_per_gpu": )" + std::to_string(12 / ranks) +
         R"(, "steps_per_print": null, "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
            "zero_optimization": {"stage": )" +
         std::to_string(stage) + "}, " + more + "}";
}

std::shared_ptr<Communicator> shared(Communicator& communicator) {
  return {&communicator, [](Communicator*) {}};
}

TEST(BackgroundSave, TellsWhetherWhatItWritesIsWritten) {
  std::promise<void> goes_on;
  BackgroundSave save;
  EXPECT_FALSE(save.written_within(std::chrono::milliseconds(0)));
  save.start([&] { goes_on.get_future().wait(); });
  EXPECT_FALSE(save.written_within(std::chrono::milliseconds(0)));
  goes_on.set_value();
  EXPECT_TRUE(save.written_within(std::chrono::minutes(5)));
  save.finish();
  save.start([] { throw RuntimeFault("the disk is full"); });
  EXPECT_FALSE(save.written_within(std::chrono::minutes(5)));
  EXPECT_THAT([&] { save.finish(); }, testing::ThrowsMessage<RuntimeFault>("the disk is full"));
}

/// One tensor, which on that rank is not in memory, and cannot be read.
CheckpointContents away_on(int rank_away, int rank) {
  CheckpointContents contents;
  contents.tensors = {{"w", "param", {4}, 2 * rank, at::full({2}, rank, at::kFloat)}};
  if (rank != rank_away) return contents;
  contents.tensors[0].read = [](std::int64_t, std::int64_t) -> at::Tensor { throw RuntimeFault("the store is gone"); };
  contents.tensors[0].values = values_elsewhere({2}, at::kFloat);
  return contents;
}

TEST(BackgroundSave, IsGivenUpOnAllRanksWithOneNoticeWhereOneHasValuesOutsideMemory) {
  const auto errors = test::run_ranks(2, [](Communicator& ranks) {
    Config config;
    BackgroundSave save;
    EXPECT_FALSE(save.takes(away_on(-1, ranks.rank()), config, ranks));  // not asked for
    config.checkpoint.writer.emplace().decoupled = true;
    EXPECT_TRUE(save.takes(away_on(-1, ranks.rank()), config, ranks));
    for (int i = 0; i < 2; ++i) EXPECT_FALSE(save.takes(away_on(1, ranks.rank()), config, ranks));
    config.datastates_ckpt.emplace();
    EXPECT_FALSE(BackgroundSave().takes(away_on(0, ranks.rank()), config, ranks));
  });
  const std::string why =
      ": this run keeps values outside memory, and has no room for a second copy of them. Training waits until each "
      "checkpoint is written.\n";
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(errors[rank].exit_code, 0) << errors[rank].out << errors[rank].err;
  }
  EXPECT_EQ(errors[0].err,
            "capstan: warning: checkpoint.writer.decoupled" + why + "capstan: warning: datastates_ckpt" + why);
  EXPECT_EQ(errors[1].err, "");
}

TEST(BackgroundSave, HoldsTheValuesOfTheStepThatAskedForIt) {
  const test::TemporaryFolder folder;
  const std::string dir = folder.path().string();
  for (const char* how : {kDecoupled, R"("datastates_ckpt": {})", R"("datastates_ckpt": {"host_cache_size": 1e-9})"}) {
    MixedRun run(config_of(1, how), Communicator::alone());
    run.steps(2);
    const at::Tensor values = run.values().clone();
    run.engine.save_checkpoint(dir, "kept");
    const auto losses = run.steps(3);  // changes everything that the snapshot was made of
    run.engine.finish_saving();
    EXPECT_FALSE(run.engine.saving());
    EXPECT_EQ(latest_tag(dir), "kept");

    MixedRun again(config_of(1, how), Communicator::alone());
    again.engine.load_checkpoint(dir);
    EXPECT_TRUE(at::equal(again.values(), values)) << how;
    EXPECT_EQ(again.steps(3), losses) << how;
  }
}

TEST(BackgroundSave, IsMadeOfASnapshotHoweverLongTheWriterTakes) {
  const test::TemporaryFolder folder;
  const std::string dir = folder.path().string();
  MixedRun run(config_of(1, kDecoupled), Communicator::alone());
  run.steps(2);
  const at::Tensor values = run.values().clone();
  {
    const HeldWriters held;
    run.engine.save_checkpoint(dir, "kept");
    run.steps(3);
    EXPECT_FALSE(at::equal(run.values(), values));
    EXPECT_TRUE(run.engine.saving());
    EXPECT_FALSE(std::filesystem::exists(folder.path() / "latest"));
  }
  run.engine.finish_saving();
  MixedRun again(config_of(1, kDecoupled), Communicator::alone());
  again.engine.load_checkpoint(dir);
  EXPECT_EQ(again.engine.progress().global_steps, 2);
  EXPECT_TRUE(at::equal(again.values(), values));
}

TEST(BackgroundSave, AFailureIsToldAtTheNextStepAndTheCheckpointBeforeStays) {
  const test::TemporaryFolder folder;
  const std::string dir = folder.path().string();
  MixedRun run(config_of(1, kDecoupled), Communicator::alone());
  run.engine.save_checkpoint(dir, "before");
  run.engine.finish_saving();
  std::filesystem::create_directories(folder.path() / "taken");
  std::ofstream(folder.path() / "taken" / "note.txt") << "somebody's";
  run.engine.save_checkpoint(dir, "taken");  // returns: the error is the writer's
  while (run.engine.saving()) std::this_thread::yield();
  EXPECT_THAT([&] { run.step(); },
              testing::ThrowsMessage<RuntimeFault>(HasSubstr("something is there already that is not a checkpoint")));
  EXPECT_EQ(latest_tag(dir), "before");
  run.steps(2);  // told once
  run.engine.save_checkpoint(dir, "taken");
  EXPECT_THROW(run.engine.finish_saving(), RuntimeFault);
  run.engine.save_checkpoint(dir, "taken");
  EXPECT_THROW(run.engine.save_checkpoint(dir, "after"), RuntimeFault);
  run.engine.save_checkpoint(dir, "after");
  run.engine.finish_saving();
  EXPECT_EQ(latest_tag(dir), "after");
}

std::string shared_folder(Communicator& communicator, std::optional<test::TemporaryFolder>& folder) {
  if (communicator.rank() == 0) folder.emplace();
  return communicator.all_gather_text("test: folder", folder ? folder->path().string() : "").front();
}

TEST(BackgroundSave, AReaderThatFailsOnOneRankIsToldOnAll) {
  test::expect_on_ranks(2, [](Communicator& ranks) {
    std::optional<test::TemporaryFolder> folder;
    const std::string dir = shared_folder(ranks, folder);
    const CheckpointRank one{ranks.rank(), ranks.rank() == 0, [&](const std::string& phase, const std::string& text) {
                               return ranks.all_gather_text(phase, text, "save_checkpoint");
                             }};
    EXPECT_THAT([&] { write_checkpoint(dir, "t", away_on(1, ranks.rank()), one); },
                testing::ThrowsMessage<RuntimeFault>("rank 1: the store is gone"));
    ranks.all_gather_text("test: thrown", "", "seen");
    EXPECT_TRUE(std::filesystem::is_empty(dir));
    ranks.all_gather_text("test: end", "");  // the folder ends with rank 0
  });
}

TEST(BackgroundSave, OfSeveralRanksGoesOnBesideTheirCollectives) {
  test::expect_on_ranks(3, [](Communicator& communicator) {
    std::optional<test::TemporaryFolder> folder;
    const std::string dir = shared_folder(communicator, folder);
    MixedRun run(config_of(3, kDecoupled, 2), shared(communicator));
    for (int save = 0; save < 5; ++save) {
      run.step();
      run.engine.save_checkpoint(dir);
    }
    const at::Tensor values = run.values().clone();
    run.steps(2);
    run.engine.finish_saving();
    EXPECT_EQ(latest_tag(dir), "global_step5");
    MixedRun again(config_of(3, kDecoupled, 1), shared(communicator));
    again.engine.load_checkpoint(dir);
    EXPECT_TRUE(at::equal(again.values(), values));
    communicator.all_gather_text("test: end", "");
  });
}

TEST(BackgroundSave, ARankThatDiesMeanwhileLeavesTheCheckpointBefore) {
  const test::TemporaryFolder folder;
  const std::string dir = folder.path().string();
  setenv("CAPSTAN_TEST_FOLDER", dir.c_str(), /*overwrite=*/0);
  const auto ends = test::run_ranks(2, [](Communicator& communicator) {
    const std::string place = std::getenv("CAPSTAN_TEST_FOLDER");
    MixedRun run(config_of(2, kDecoupled, 2), shared(communicator));
    run.step();
    run.engine.save_checkpoint(place);
    run.engine.finish_saving();
    run.step();
    // Rank 1 dies before its thread can have written: rank 0 has no part of it.
    if (communicator.rank() == 1) {
      rlimit none{0, 0};
      setrlimit(RLIMIT_FSIZE, &none);  // its first write ends it
      std::signal(SIGXFSZ, SIG_DFL);
    }
    run.engine.save_checkpoint(place);
    try {
      run.engine.finish_saving();
      ADD_FAILURE() << "the other rank was killed";
    } catch (const RuntimeFault& fault) {
      EXPECT_THAT(fault.what(), HasSubstr("rank 1 is gone"));
    }
  });
  EXPECT_EQ(ends[0].exit_code, 0) << ends[0].out << ends[0].err;
  EXPECT_EQ(ends[1].signal, SIGXFSZ);
  EXPECT_EQ(latest_tag(dir), "global_step1");
  EXPECT_FALSE(read_checkpoint(dir, "global_step1").tensors.empty());
}

}  // namespace
}  // namespace capstan
