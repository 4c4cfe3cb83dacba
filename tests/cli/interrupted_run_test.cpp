// Signals, full disks, and calls of the system that fail while a run saves.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <fstream>

#include "core/checkpoint/checkpoint_folder.hpp"
#include "tests/cli/capstan_process.hpp"
#include "tests/cli/training_folder.hpp"
#include "tests/core/checkpoint/small_disk.hpp"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using test::capstan_words;
using test::Program;
using test::ProgramEnd;
using test::run_capstan;
using test::run_program;
using test::TrainingFolder;
using ::testing::HasSubstr;

class Interrupted : public ::testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Signals, Interrupted, ::testing::Values(SIGINT, SIGTERM),
                         [](const auto& info) { return std::string(info.param == SIGINT ? "SIGINT" : "SIGTERM"); });

TEST_P(Interrupted, TheStepIsFinishedAndSavedAndTheRunGoesOnFromThere) {
  const TrainingFolder folder;
  const auto dir = folder.path_of("ck");
  Program program(capstan_words(folder.train({"--steps", "1000000", "--save", dir})));
  ASSERT_TRUE(program.wait_for("step=3")) << program.wait().text;
  program.send(GetParam());
  const ProgramEnd end = program.wait();

  EXPECT_EQ(end.exit_code, 130) << end.text;
  EXPECT_THAT(end.text, HasSubstr("Continue with --resume " + dir));
  const auto tag = latest_tag(dir);
  EXPECT_THAT(end.text, HasSubstr("saved " + dir + "/" + tag));
  const std::string next = std::to_string(step_of(tag) + 1);
  const auto resumed = run_capstan(folder.train({"--steps", next, "--save", dir, "--resume", dir}));
  EXPECT_EQ(resumed.exit_code, 0) << resumed.text;
  EXPECT_EQ(latest_tag(dir), "global_step" + next);
}

TEST_P(Interrupted, WithoutSaveNothingIsWrittenAndThatIsSaid) {
  const TrainingFolder folder;
  Program program(capstan_words(folder.train({"--steps", "1000000"})));
  ASSERT_TRUE(program.wait_for("step=3")) << program.wait().text;
  program.send(GetParam());
  const ProgramEnd end = program.wait();

  EXPECT_EQ(end.exit_code, 130) << end.text;
  EXPECT_THAT(end.text, HasSubstr("Nothing was saved: --save is not given."));
}

TEST(InterruptedTwice, EndsAtOnceAndLosesNothing) {
  const TrainingFolder folder;
  const auto dir = folder.path_of("ck");
  // A save of some 50 MB after each step: the second signal falls into it.
  folder.write_config("large.json", R"("optimizer": {"type": "AdamW", "params": {"lr": 1e-2}})",
                      R"({"type": "mlp", "params": {"d": 256, "hidden": 2048, "seq": 16}})");
  Program program(capstan_words(
      folder.train({"--steps", "1000000", "--save", dir, "--save-every", "1", "--keep", "2"}, "large.json")));
  ASSERT_TRUE(program.wait_for("saved ")) << program.wait().text;
  program.send(SIGTERM);
  ASSERT_TRUE(program.wait_for("a second signal ends at once")) << program.wait().text;
  program.send(SIGTERM);
  const ProgramEnd end = program.wait();

  EXPECT_EQ(end.signal, SIGTERM) << end.text;
  read_checkpoint(dir, latest_tag(dir));
}

/// A run whose save fails for the reason given: it says so, and what was saved before stays.
void expect_failed_save(const ProgramEnd& end, const fs::path& dir, const std::string& reason) {
  EXPECT_EQ(end.exit_code, 1) << end.text;
  EXPECT_THAT(end.text, HasSubstr("rank_00000.safetensors': writing failed at byte "));
  EXPECT_THAT(end.text, HasSubstr(reason));
  EXPECT_EQ(latest_tag(dir), "global_step2");
  read_checkpoint(dir, "global_step2");
  EXPECT_THAT(checkpoint_tags(dir), ::testing::ElementsAre("global_step2"));
}

TEST(FailingSave, AFileSizeLimitLeavesThePreviousCheckpoint) {
  const TrainingFolder folder;
  const fs::path dir = folder / "ck";
  ASSERT_EQ(run_capstan(folder.train({"--steps", "2", "--save", dir.string()})).exit_code, 0);
  const auto limited = [] {
    const rlimit limit{20'000, 20'000};
    setrlimit(RLIMIT_FSIZE, &limit);
  };

  const auto end = run_program(
      capstan_words(folder.train({"--steps", "4", "--save", dir.string(), "--resume", dir.string()})), limited);
  expect_failed_save(end, dir, ": File too large.");
  for (const auto& entry : fs::directory_iterator(dir)) EXPECT_FALSE(entry.path().filename().string().starts_with('.'));
}

TEST(FailingSave, AFullDiskLeavesThePreviousCheckpoint) {
  const TrainingFolder folder;
  const fs::path dir = folder / "ck";
  fs::create_directory(dir);
  const test::SmallDisk disk(dir, "256k");
  if (!disk.mounted()) GTEST_SKIP() << "a small file system cannot be mounted here: " << disk.reason();
  ASSERT_EQ(run_capstan(folder.train({"--steps", "2", "--save", dir.string()})).exit_code, 0);
  std::ofstream(dir / "others").write(std::string(120'000, 'x').data(), 120'000);

  const auto end = run_capstan(folder.train({"--steps", "4", "--save", dir.string(), "--resume", dir.string()}));
  expect_failed_save(end, dir, ": No space left on device. Free space there or save elsewhere.");
  fs::remove(dir / "others");
  const auto after = run_capstan(folder.train({"--steps", "4", "--save", dir.string(), "--resume", dir.string()}));
  EXPECT_EQ(after.exit_code, 0) << after.text;
  EXPECT_EQ(latest_tag(dir), "global_step4");
}

/// strace in front of a program; skips the test where it may not trace.
class Traced : public ::testing::Test {
 protected:
  void SetUp() override {
    if (run_program({"strace", "-o", "/dev/null", "true"}).exit_code != 0) {
      GTEST_SKIP() << "strace is missing or may not trace here";
    }
  }

  static ProgramEnd run_traced(std::vector<std::string> options, const std::vector<std::string>& arguments) {
    std::vector<std::string> words{"strace", "-f", "-qq"};
    words.insert(words.end(), options.begin(), options.end());
    const auto program = capstan_words(arguments);
    words.insert(words.end(), program.begin(), program.end());
    return run_program(words);
  }
};

TEST_F(Traced, FilesAreSyncedThenNamedThenTheFolderSyncedThenLatest) {
  const TrainingFolder folder;
  const auto dir = folder.path_of("ck"), log = folder.path_of("strace.log");
  const auto end = run_traced({"-y", "-s", "300", "-e", "trace=fsync,fdatasync,rename,renameat,renameat2", "-o", log},
                              folder.train({"--steps", "1", "--save", dir}));
  ASSERT_EQ(end.exit_code, 0) << end.text;

  const std::string calls = test::read_bytes(log);
  std::size_t at = 0;
  for (const std::string step : {"/rank_00000.safetensors>", "/state.json>", "/index.json>", ".global_step1.partial-",
                                 ".global_step1.partial-", "fsync", "/.latest.partial-", "/latest\"", "fsync"}) {
    const auto found = calls.find(step, at);
    ASSERT_NE(found, std::string::npos) << step << " is missing or too early in\n" << calls;
    at = calls.find('\n', found);
  }
}

TEST_F(Traced, WhereFoldersCannotBeSwappedATagIsReplacedByTwoRenames) {
  const TrainingFolder folder;
  const auto dir = folder.path_of("ck");
  ASSERT_EQ(run_capstan(folder.train({"--steps", "4", "--save", dir, "--save-every", "2"})).exit_code, 0);
  // Without the monitor, which renames files of its own.
  const auto again = folder.train(
      {"--steps", "4", "--save", dir, "--resume", dir + ":global_step2", "--set", "csv_monitor.enabled=false"});
  const std::vector<std::string> no_swap{
      "-o", "/dev/null", "-e", "trace=rename,renameat2", "-e", "inject=renameat2:error=EINVAL"};

  auto killed_between = no_swap;
  killed_between.insert(killed_between.end(), {"-e", "inject=rename:signal=KILL:when=2"});
  EXPECT_NE(run_traced(killed_between, again).exit_code, 0);
  EXPECT_FALSE(fs::exists(dir + "/global_step4"));
  read_checkpoint(dir, latest_tag(dir));

  const auto end = run_traced(no_swap, again);
  EXPECT_EQ(end.exit_code, 0) << end.text;
  read_checkpoint(dir, "global_step4");
  for (const auto& entry : fs::directory_iterator(dir)) EXPECT_FALSE(entry.path().filename().string().starts_with('.'));
}

}  // namespace
}  // namespace capstan
