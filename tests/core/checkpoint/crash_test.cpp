// What a checkpoint folder is like when the process dies: at every single system call of a save.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "core/checkpoint/checkpoint.hpp"
#include "core/checkpoint/checkpoint_folder.hpp"
#include "core/errors.hpp"
#include "tests/core/checkpoint/sample_checkpoint.hpp"
#include "tests/core/checkpoint/traced_process.hpp"
#include "tests/core/data/temporary_folder.hpp"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using test::durability_calls;
using test::expect_equal;
using test::kill_at_stop;
using test::sample_checkpoint;
using test::TemporaryFolder;
using test::TracedEnd;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// Names that only a save under way may leave.
std::vector<std::string> leftovers(const fs::path& dir) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(dir)) {
    if (entry.path().filename().string().starts_with('.')) names.push_back(entry.path().filename());
  }
  return names;
}

/// Kills `action` at each of its system calls in turn, each time in a folder that `prepare` has made afresh, and lets
/// `check` look at what is left. Returns how many kills fell while the folder held something unfinished.
int kill_everywhere(const std::function<void(const fs::path&)>& prepare,
                    const std::function<void(const fs::path&)>& action,
                    const std::function<void(const fs::path&)>& check) {
  int inside = 0;
  for (int stop = 0;; ++stop) {
    const TemporaryFolder folder("/dev/shm");
    prepare(folder.path());
    const auto end = kill_at_stop(
        stop, [&] { action(folder.path()); }, [&] { inside += leftovers(folder.path()).empty() ? 0 : 1; });
    if (end == TracedEnd::kFinished) return inside;
    if (end != TracedEnd::kKilled) return -1;
    check(folder.path());
    if (::testing::Test::HasFailure()) {
      ADD_FAILURE() << "killed at stop " << stop;
      return inside;
    }
  }
}

void expect_step(const fs::path& dir, const std::set<int>& allowed) {
  const CheckpointContents found = read_checkpoint(dir, latest_tag(dir));
  const int step = static_cast<int>(found.state.at("global_steps").as_integer());
  EXPECT_TRUE(allowed.contains(step)) << step;
  expect_equal(found, sample_checkpoint(step));
}

/// The folder is as good as new: a save works and leaves nothing behind.
void expect_usable(const fs::path& dir) {
  write_checkpoint(dir, "global_step9", sample_checkpoint(9));
  expect_step(dir, {9});
  EXPECT_THAT(leftovers(dir), IsEmpty());
}

class CheckpointCrash : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!fs::is_directory("/dev/shm")) GTEST_SKIP() << "no /dev/shm to save into";
    if (kill_at_stop(
            0, [] { getppid(); }, [] {}) == TracedEnd::kNotTraceable)
      GTEST_SKIP() << "ptrace is not allowed";
  }
};

TEST_F(CheckpointCrash, AtAnyCallOfASaveLeavesTheOldOrTheNewOne) {
  const int inside =
      kill_everywhere([](const fs::path& dir) { write_checkpoint(dir, "global_step1", sample_checkpoint(1)); },
                      [](const fs::path& dir) { write_checkpoint(dir, "global_step2", sample_checkpoint(2)); },
                      [](const fs::path& dir) {
                        expect_step(dir, {1, 2});
                        for (const auto& tag : checkpoint_tags(dir)) read_checkpoint(dir, tag);
                        expect_usable(dir);
                      });
  EXPECT_GE(inside, 10);
}

TEST_F(CheckpointCrash, AtAnyCallOfASaveOverTheSameTagLeavesTheOldOrTheNewOne) {
  const int inside = kill_everywhere([](const fs::path& dir) { write_checkpoint(dir, "best", sample_checkpoint(1)); },
                                     [](const fs::path& dir) { write_checkpoint(dir, "best", sample_checkpoint(2)); },
                                     [](const fs::path& dir) {
                                       expect_step(dir, {1, 2});
                                       expect_usable(dir);
                                     });
  EXPECT_GE(inside, 10);
}

TEST_F(CheckpointCrash, AtAnyCallOfTheFirstSaveLeavesAWholeOneOrNone) {
  const int inside = kill_everywhere([](const fs::path&) {},
                                     [](const fs::path& dir) { write_checkpoint(dir, "t", sample_checkpoint(1)); },
                                     [](const fs::path& dir) {
                                       if (fs::exists(dir / "latest")) expect_step(dir, {1});
                                       expect_usable(dir);
                                     });
  EXPECT_GE(inside, 10);
}

TEST_F(CheckpointCrash, AtAnyCallOfPruningLeavesOnlyWholeOnes) {
  const int inside = kill_everywhere(
      [](const fs::path& dir) {
        for (int step : {1, 2, 3}) write_checkpoint(dir, "global_step" + std::to_string(step), sample_checkpoint(step));
      },
      [](const fs::path& dir) {
        prune_checkpoints(dir, 1, {"global_step1", "global_step2", "global_step3"});
      },
      [](const fs::path& dir) {
        expect_step(dir, {3});
        for (const auto& tag : checkpoint_tags(dir)) read_checkpoint(dir, tag);
        expect_usable(dir);
      });
  EXPECT_GE(inside, 1);
}

// A power cut keeps what was synced: the files before the folder they are in, that before its name is changed, the name
// before `latest` tells it.
TEST_F(CheckpointCrash, EveryStepIsOnTheDiskBeforeTheNextRestsOnIt) {
  const TemporaryFolder folder("/dev/shm");
  const std::string dir = folder.path().string();
  auto calls = durability_calls([&] { write_checkpoint(dir, "t", sample_checkpoint(1)); });
  ASSERT_FALSE(calls.empty());
  for (auto& call : calls) {  // the process's id
    for (auto place = call.find(".partial-"); place != std::string::npos; place = call.find(".partial-", place + 1)) {
      call.erase(place + 8, call.find_first_not_of("0123456789", place + 9) - (place + 8));
    }
  }
  EXPECT_THAT(calls, ElementsAre("fsync " + dir,  // the new name of the partial folder
                                 "fsync " + dir + "/.t.partial/rank_00000.safetensors",
                                 "fsync " + dir + "/.t.partial/state.json", "fsync " + dir + "/.t.partial/index.json",
                                 "fsync " + dir + "/.t.partial", "rename " + dir + "/.t.partial " + dir + "/t",
                                 "fsync " + dir, "fsync " + dir + "/.latest.partial",
                                 "rename " + dir + "/.latest.partial " + dir + "/latest", "fsync " + dir));
}

}  // namespace
}  // namespace capstan
