// Elastic launches in containers that share /dev/shm: each has its own numbers of processes. And what other users, or
// nobody, may have put there.

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "core/registry/file_trust.hpp"
#include "tests/cli/elastic_fixture.hpp"

namespace capstan::cli {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

/// As with docker --ipc=host, or a pod's folder in memory that outlives its containers.
class ElasticContainer : public Elastic {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "only root can make a PID namespace";
    fs::create_directory(memory_);
    const ProcessResult made = run_process(
        {"unshare", "--mount", "--pid", "--fork", "--mount-proc", "mount", "--bind", memory_.string(), "/dev/shm"});
    if (made.exit_code != 0) GTEST_SKIP() << "PID namespaces cannot be made here: " << made.err;
  }
  /// `run`: how the shell, which is process 1 of the container, runs the launcher.
  ElasticStart container(const std::string& run = "exec \"$0\" \"$@\"") const {
    const std::string script = "mount --bind '" + memory_.string() + "' /dev/shm && " + run;
    return {.program = {"unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child=SIGKILL", "sh", "-c",
                        script, kCapstan},
            .memory = memory_,
            .own_numbers = true};
  }
  /// A command of capstan where the folder is /dev/shm.
  ProcessResult run_there(const std::vector<std::string>& words) const {
    const std::string script = "mount --bind '" + memory_.string() + "' /dev/shm && exec timeout 60 \"$0\" \"$@\"";
    std::vector<std::string> all = {"unshare", "--mount", "sh", "-c", script, kCapstan};
    all.insert(all.end(), words.begin(), words.end());
    ProcessOptions options;
    options.environment = {"OMP_NUM_THREADS=1"};
    options.folder = folder_.path();
    return run_process(all, options);
  }
  static std::ptrdiff_t entries(const fs::path& folder) {
    return std::distance(fs::directory_iterator(folder), fs::directory_iterator());
  }
  std::ptrdiff_t folders() const { return entries(memory_); }

  const fs::path memory_ = folder_ / "memory";
};

TEST_F(ElasticContainer, LeavesALaunchInAnotherOneAlone) {
  ElasticRun run(folder_, {"--elastic", "1:2", "-n", "1"}, train("one", kEndless), container());
  ASSERT_TRUE(run.await(10));
  const fs::path folder = run.folder()->path();
  // Process 1 is not a launcher there.
  ElasticRun other(folder_, {"--elastic", "1:1"}, train("other", 5), container("\"$0\" \"$@\"; exit $?"));
  const ProcessResult result = other.wait();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, Not(HasSubstr("was lost with all its processes")));
  EXPECT_TRUE(fs::exists(folder / "world.json"));
  EXPECT_EQ(folders(), 1);
  // The launch can still change.
  const std::vector<pid_t> members = children_of(run.launcher());
  ASSERT_EQ(members.size(), 1u);
  kill(members.front(), SIGKILL);
  ASSERT_TRUE(run.await(0, 2));
  run.send(SIGTERM);
  EXPECT_EQ(run.wait().exit_code, 130);
  EXPECT_EQ(folders(), 0);
}

TEST_F(ElasticContainer, ThatIsRestartedGoesOnFromWhatItHasLeft) {
  const std::vector<std::string> words = train("log", kEndless);
  std::int64_t step = 20;
  for (int start = 1; start <= 3; ++start) {
    ElasticRun run(folder_, {"--elastic", "1:1"}, words, container());
    ASSERT_TRUE(run.await(step + 1, start)) << "start " << start;
    step = run.step();
    EXPECT_EQ(folders(), 1);
    if (start == 3) {
      run.send(SIGTERM);
      EXPECT_THAT(run.wait().out, HasSubstr("2 processes lost, "));
      break;
    }
    run.send(SIGKILL);
    const ProcessResult killed = run.wait();
    // Of the process of this start, and of those whose snapshot it has gone on from.
    EXPECT_LE(entries(fs::directory_iterator(memory_)->path() / "snapshots"), 4);
    EXPECT_EQ(killed.err.find("lost with all its processes") != std::string::npos, start > 1) << killed.err;
    EXPECT_THAT(run_there({"launch", "--status"}).out,
                HasSubstr("left by a launch that was lost with all its processes: /dev/shm/capstan-elastic-0-"));
    // One of another command leaves it alone.
    std::vector<std::string> other = {"launch", "--elastic", "1:1", "train"};
    for (const std::string& word : train("other-" + std::to_string(start), 3)) other.push_back(word);
    EXPECT_EQ(run_there(other).exit_code, 0);
    EXPECT_EQ(folders(), 1);
  }
  EXPECT_EQ(folders(), 0);
  EXPECT_TRUE(fs::exists(folder_ / "log-ck/latest"));
}

TEST_F(ElasticContainer, IsNotLedAstrayByFoldersOfOtherUsers) {
  constexpr uid_t kNobody = 65534;
  const fs::path planted = memory_ / "capstan-elastic-0-1-abcdef", fifos = memory_ / "capstan-elastic-0-4000000-abcdef";
  const fs::path target = folder_ / "made-by-root", broken = memory_ / "capstan-elastic-0-2-abcdef";
  for (const fs::path& one : {planted, fifos}) fs::create_directory(one);
  fs::create_symlink(target, planted / "board");
  ASSERT_EQ(mkfifo((fifos / "world.json").c_str(), 0666), 0);
  ASSERT_EQ(mkfifo((fifos / "launch").c_str(), 0666), 0);
  for (const fs::path& one : {planted, fifos}) ASSERT_EQ(chown(one.c_str(), kNobody, kNobody), 0);
  ASSERT_EQ(mkdir(broken.c_str(), 0700), 0);
  for (const char* file : {"alive", "launch"}) write_bytes(broken / file, "");
  write_bytes(broken / "board", std::string(4096, '\0'));
  write_bytes(broken / "world.json", "{}");

  const std::string refused = "': belongs to " + user_name(kNobody) +
                              ", not to you (root), so that nothing in it is used. Its owner or root can remove it.\n";
  const ProcessResult shown = run_there({"launch", "--status"});
  EXPECT_EQ(shown.exit_code, 0) << shown.err;
  EXPECT_EQ(shown.out,
            "There is no elastic launch of this user on this host.\n"
            "not shown: '/dev/shm/capstan-elastic-0-1-abcdef" +
                refused + "not shown: '/dev/shm/capstan-elastic-0-4000000-abcdef" + refused);

  std::vector<std::string> words = {"launch", "--elastic", "1:1", "train"};
  const std::vector<std::string> trained = train("log", 3);
  words.insert(words.end(), trained.begin(), trained.end());
  const ProcessResult result = run_there(words);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("warning: launch: '/dev/shm/capstan-elastic-0-2-abcdef/world.json': is not "
                                          "what a launcher of this version writes ("),
                                HasSubstr("nobody can go on from it: the folder is removed."),
                                HasSubstr("Its owner or root can remove it. 1 more cannot be used: 'capstan launch "
                                          "--status'.")));
  EXPECT_FALSE(fs::exists(target));
  EXPECT_FALSE(fs::exists(broken));
  EXPECT_TRUE(fs::exists(planted));
  EXPECT_TRUE(fs::exists(fifos));
}

TEST_F(ElasticContainer, NamesABoardThatIsCutShortWhileItTrains) {
  ElasticRun run(folder_, {"--elastic", "1:1"}, train("cut", kEndless), container());
  ASSERT_TRUE(run.await(5));
  const fs::path board = run.folder()->path() / "board";
  ASSERT_EQ(truncate(board.c_str(), 0), 0);
  const ProcessResult result = run.wait();
  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("/board': was cut short. A launcher makes it, and nobody else may change it: "
                                          "launch anew."),
                                Not(HasSubstr("killed by SIGBUS")), Not(HasSubstr("bug in Capstan"))));
  EXPECT_EQ(folders(), 0);
}

TEST_F(ElasticContainer, IsNotLedAstrayByAFolderOfTorchrunsRestarts) {
  const std::vector<std::string> words = train("torchrun", kEndless);
  const auto train_there = [&](const std::string& run, const std::vector<std::string>& more) {
    std::vector<std::string> all = {"env", "TORCHELASTIC_RUN_ID=" + run, kCapstan, "train"};
    all.insert(all.end(), words.begin(), words.end());
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  const std::string script = "mount --bind '" + memory_.string() + "' /dev/shm && exec \"$0\" \"$@\"";
  ProcessOptions options;
  options.environment = {"OMP_NUM_THREADS=1"};
  options.folder = folder_.path();
  const auto in_memory = [&](std::vector<std::string> all) {
    all.insert(all.begin(), {"unshare", "--mount", "sh", "-c", script});
    return all;
  };
  Process run(in_memory(train_there("one", {})), options);
  ASSERT_TRUE(eventually([&] { return folders() == 1 && entries(fs::directory_iterator(memory_)->path()) > 1; }));
  run.send(SIGKILL);
  run.wait();
  const std::string left = fs::directory_iterator(memory_)->path().filename().string();
  ASSERT_THAT(left, StartsWith("capstan-torchrun-0-"));
  ASSERT_EQ(chown((memory_ / left).c_str(), 65534, 65534), 0);
  const std::string sentence = "'/dev/shm/" + left + "': belongs to " + user_name(65534) +
                               ", not to you (root), so that nothing in it is used. Its owner or root can remove it.";
  const ProcessResult same = run_process(in_memory(train_there("one", {})), options);
  EXPECT_EQ(same.exit_code, 1);
  EXPECT_THAT(same.err, HasSubstr("error: elasticity: no folder for snapshots: " + sentence +
                                  " Set \"elasticity\": {\"enabled\": false} to train without them."));
  const ProcessResult other = run_process(in_memory(train_there("other", {"--steps", "2"})), options);
  EXPECT_EQ(other.exit_code, 0) << other.err;
  EXPECT_THAT(other.err, HasSubstr("warning: elasticity: " + sentence));
  EXPECT_EQ(folders(), 1);
  EXPECT_EQ(fs::directory_iterator(memory_)->path().filename().string(), left);
}

// The processes are in another namespace than the launcher: their parent has the number 0. Process 1 there is none of
// them, because the kernel kills all others when it ends.
TEST_F(ElasticContainer, MayHoldTheProcessesWithoutTheirLauncher) {
  const std::string script = "sleep 600 > /dev/null 2>&1 & echo $! > sleeper; exec \"$0\" \"$@\"";
  ElasticRun run(folder_, {"--elastic", "2:2"}, train("inside", 5),
                 {.program = {"unshare", "--pid", "sh", "-c", script, kCapstan}});
  const ProcessResult result = run.wait();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  expect_each_sample_once("inside", result.out, 5);
  const pid_t sleeper = std::atoi(read_bytes(folder_ / "sleeper").c_str());
  ASSERT_GT(sleeper, 0);
  EXPECT_EQ(kill(sleeper, SIGKILL), 0) << "the launcher has waited for a process that it has not started";
}

}  // namespace
}  // namespace capstan::cli
