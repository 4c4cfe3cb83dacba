// Elastic launches whose shared memory is too small, or becomes full.

#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "tests/cli/elastic_fixture.hpp"

namespace capstan::cli {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

class ElasticMemory : public Elastic {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "only root can give a launch a /dev/shm of its own";
    const ProcessResult mounted = run_process({"unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/dev/shm"});
    if (mounted.exit_code != 0) GTEST_SKIP() << "a small file system cannot be mounted here: " << mounted.err;
  }
  /// A launch whose /dev/shm is of that size; `first`: a command there before it starts.
  static ElasticStart with_memory(const std::string& size, const std::string& first = "true") {
    const std::string script =
        "mount -t tmpfs -o size=" + size + " tmpfs /dev/shm && { " + first + "; } && exec \"$0\" \"$@\"";
    return {.program = {"unshare", "--mount", "sh", "-c", script, kCapstan}, .own_memory = true};
  }
};

constexpr const char* kFill = "dd if=/dev/zero of=/dev/shm/full bs=4096 2>/dev/null || true";

TEST_F(ElasticMemory, TooSmallForTheSnapshotsIsNamedBeforeTheFirstStep) {
  const bool all = std::getenv("CAPSTAN_TEST_ALL") != nullptr;
  const std::string ranks = all ? "32" : "4", size = all ? "64m" : "8m";
  // 12 d^2 a layer and more: 0.8 million parameters, twice 12 bytes each.
  const std::vector<std::string> large = {"--set", "capstan.model.params.d=" + std::string(all ? "512" : "128"),
                                          "--set", "elasticity.max_train_batch_size=" + std::string(all ? "96" : "12"),
                                          "--set", "capstan.model.params.layers=4"};
  ElasticRun run(folder_, {"--elastic", ranks + ":" + ranks}, train("small", 10, large), with_memory(size));
  const ProcessResult result = run.wait();
  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("elasticity: the snapshots of " + ranks +
                                          " processes on this host, two of "
                                          "each part of the training's state, need "),
                                HasSubstr(" MB are free"), HasSubstr("mount -o remount,size="),
                                HasSubstr("or train without --elastic and save checkpoints to disk.")));
  EXPECT_THAT(result.err, Not(HasSubstr("was killed by ")));
}

TEST_F(ElasticMemory, ThatIsFullFromTheBeginningIsNamed) {
  ElasticRun run(folder_, {"--elastic", "2:2"}, train("full", 10), with_memory("8m", kFill));
  const ProcessResult result = run.wait();
  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("'/dev/shm"), HasSubstr("No space left on device")));
}

/// Snapshots were allocated before, so that training goes on: what a change of the processes needs beside is in place.
TEST_F(ElasticMemory, ThatBecomesFullEndsNothing) {
  ElasticRun run(folder_, {"--elastic", "2:2", "--spares", "1"}, train("full", kEndless), with_memory("16m"));
  ASSERT_TRUE(run.await_waiting(1));
  ASSERT_TRUE(run.await(20));
  const fs::path full = run.folder()->path().parent_path() / "full";
  {
    std::ofstream out(full, std::ios::binary);
    const std::string block(4096, 'x');
    while (out << block << std::flush) {
    }
  }
  ASSERT_TRUE(run.await(run.step() + 20));
  run.kill_rank(1);
  ASSERT_TRUE(run.await(0, 2));
  EXPECT_THAT(end_and_compare(run, "full", "2").out, HasSubstr("1 process lost, "));
}

/// In place of `mount`, /dev/shm is as `script` leaves it; `temporary`: the folder for temporary files.
ElasticStart with_script(const std::string& script, const std::filesystem::path& temporary) {
  return {.program = {"unshare", "--mount", "sh", "-c", script + " && exec \"$0\" \"$@\"", kCapstan},
          .environment = {"TMPDIR=" + temporary.string()}};
}

constexpr const char* kReadOnly = "mount -t tmpfs -o ro tmpfs /dev/shm";

TEST_F(ElasticMemory, ThatIsReadOnlyOrAbsentIsReplacedByTheFolderForTemporaryFiles) {
  // A /dev without shm: the devices alone.
  const std::string absent =
      "mkdir dev && mount -t tmpfs tmpfs dev && for one in null zero urandom random; do touch dev/$one && mount --bind "
      "/dev/$one dev/$one || exit 9; done && mount --rbind dev /dev";
  for (const auto& [script, reason] : std::map<std::string, std::string>{{kReadOnly, "Read-only file system"},
                                                                         {absent, "No such file or directory"}}) {
    const fs::path temporary = folder_ / reason;
    fs::create_directory(temporary);
    const std::string name = script == kReadOnly ? "readonly" : "absent";
    ElasticRun run(folder_, {"--elastic", "2:2"}, train(name, 10), with_script(script, temporary));
    const ProcessResult result = run.wait();
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.err, HasSubstr("warning: launch: '/dev/shm' cannot be written to (" + reason +
                                      "): the processes share '" + temporary.string() +
                                      "' instead, which may be on a disk. Mount a tmpfs at /dev/shm, or set TMPDIR to "
                                      "a folder in memory."));
    EXPECT_TRUE(fs::is_empty(temporary));
  }
}

TEST_F(ElasticMemory, WithoutAnyFolderToWriteToIsNamed) {
  ElasticRun run(folder_, {"--elastic", "2:2"}, train("none", 10), with_script(kReadOnly, folder_ / "none"));
  const ProcessResult result = run.wait();
  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_THAT(result.err, HasSubstr("'/dev/shm': cannot be written to (Read-only file system), nor can the folder for "
                                    "temporary files (TMPDIR=" +
                                    (folder_ / "none").string() + ": "));
  EXPECT_THAT(result.err, HasSubstr("The processes of an elastic launch share one of them: mount -t tmpfs tmpfs "
                                    "/dev/shm, or set TMPDIR to a folder of yours."));
}

}  // namespace
}  // namespace capstan::cli
