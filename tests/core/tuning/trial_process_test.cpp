#include "core/tuning/trial_process.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <fstream>
#include <thread>

#include "core/tuning/trial_folder.hpp"
#include "tests/support/temporary_folder.hpp"

namespace capstan::testing {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

class TrialProcess : public ::testing::Test {
 protected:
  TrialCommand script(const std::string& text) const {
    TrialCommand command;
    command.words = {"/bin/sh", "-c", text};
    command.out = folder_.path() / "stdout.log";
    command.err = folder_.path() / "stderr.log";
    command.measured = folder_.path() / kMetricsFile;
    command.spare_disk_bytes = 0;
    return command;
  }
  TrialResult run(const TrialCommand& command) const { return run_trial(command, {}); }
  std::string here(const char* name) const { return (folder_.path() / name).string(); }
  TrialOutcome judged(const TrialCommand& command) const { return judge_trial(run(command), folder_.path(), command); }

  /// Writes the metrics of a trial, whole.
  std::string measures() const {
    return "echo '{\"latency\": 250000, \"throughput\": 32}' > " + here("m") + " && mv " + here("m") + " " +
           here(kMetricsFile);
  }

  /// The processes that scripts wrote down here, one a line.
  std::vector<pid_t> written() const {
    std::ifstream in(here("pids"));
    std::vector<pid_t> pids;
    for (pid_t pid = 0; in >> pid;) pids.push_back(pid);
    return pids;
  }
  /// Gone, a zombie that somebody else is to reap, or dead, which is a zombie's state while it is reaped.
  static bool gone(pid_t pid) {
    std::ifstream in("/proc/" + std::to_string(pid) + "/stat");
    std::string text;
    std::getline(in, text);
    const auto name = text.rfind(')');
    return text.empty() ||
           (name != std::string::npos && (text.substr(name, 3) == ") Z" || text.substr(name, 3) == ") X"));
  }
  void expect_all_gone(std::size_t count) const {
    EXPECT_EQ(written().size(), count);
    expect_gone();
  }
  /// Where a time-out may come before a process has written its number.
  void expect_gone() const {
    const std::vector<pid_t> pids = written();
    for (const pid_t pid : pids) EXPECT_TRUE(gone(pid)) << pid;
  }

  TemporaryFolder folder_;
};

TEST_F(TrialProcess, GivesTheExitCodeAndTheOutput) {
  const TrialResult result = run(script("echo out; echo err >&2; exit 3"));
  EXPECT_EQ(result.end, TrialEnd::kEnded);
  EXPECT_EQ(result.exit_code, 3);
  std::ifstream out(here("stdout.log")), err(here("stderr.log"));
  std::string line;
  std::getline(out, line);
  EXPECT_EQ(line, "out");
  std::getline(err, line);
  EXPECT_EQ(line, "err");
}

TEST_F(TrialProcess, EndsAProgramThatHasMeasured) {
  const TrialCommand command = script("echo $$ > " + here("pids") + "; " + measures() + "; sleep 1000");
  const TrialOutcome outcome = judged(command);
  EXPECT_EQ(outcome.outcome, "ok");
  EXPECT_DOUBLE_EQ(outcome.latency, 0.25);
  EXPECT_DOUBLE_EQ(outcome.throughput, 32);
  expect_all_gone(1);
}

TEST_F(TrialProcess, PrintsErrorAndSucceeds) {
  EXPECT_EQ(judged(script("echo 'Error: ERROR' >&2; " + measures())).outcome, "ok");
}

TEST_F(TrialProcess, HangsAndIsEnded) {
  TrialCommand command = script("echo $$ > " + here("pids") + "; while :; do sleep 1000; done");
  command.time_out = milliseconds(300);
  const TrialOutcome outcome = judged(command);
  EXPECT_EQ(outcome.outcome, "timed out");
  EXPECT_THAT(outcome.reason, HasSubstr("did not end within 0 s"));
  expect_gone();
}

TEST_F(TrialProcess, IgnoresSigtermAndIsEnded) {
  TrialCommand command = script("trap '' TERM; echo $$ > " + here("pids") + "; while :; do sleep 0.05; done");
  command.time_out = milliseconds(300);
  EXPECT_EQ(run(command).end, TrialEnd::kTimedOut);
  expect_gone();
}

TEST_F(TrialProcess, LeavesGrandchildrenInSessionsOfTheirOwnAndTheyAreEnded) {
  const std::string child = "trap \"\" TERM; echo $$ >> " + here("pids") + "; exec sleep 1000";
  // Each says that it is there before the trial ends.
  const TrialResult result = run(script("setsid sh -c '" + child + "' & setsid sh -c '" + child + "' & while [ $(cat " +
                                        here("pids") + " 2>/dev/null | wc -l) -lt 2 ]; do sleep 0.01; done; exit 0"));
  EXPECT_EQ(result.end, TrialEnd::kEnded);
  expect_all_gone(2);
}

TEST_F(TrialProcess, DiesBySignal) {
  const TrialCommand command = script("kill -SEGV $$");
  const TrialOutcome outcome = judged(command);
  EXPECT_EQ(outcome.outcome, "failed");
  EXPECT_THAT(outcome.reason, HasSubstr("signal 11, Segmentation fault"));
}

TEST_F(TrialProcess, IsKilledAsTheKernelDoesWhereMemoryRunsOut) {
  EXPECT_EQ(judged(script("kill -KILL $$")).outcome, "out of memory");
}

TEST_F(TrialProcess, GrowsBeyondItsMemoryAndIsEnded) {
  // A shell variable that doubles up to 128 MiB, and stays.
  TrialCommand command = script("x=0123456789abcdef; while [ ${#x} -lt 100000000 ]; do x=$x$x; done; sleep 1000");
  command.process_bytes = 60'000'000;
  const TrialOutcome outcome = judged(command);
  EXPECT_EQ(outcome.outcome, "out of memory") << outcome.reason;
}

TEST_F(TrialProcess, WritesWithoutEndAndIsEnded) {
  TrialCommand command = script("while :; do echo 0123456789012345678901234567890123456789; done");
  command.output_bytes = 1 << 20;
  const TrialOutcome outcome = judged(command);
  EXPECT_EQ(outcome.outcome, "failed");
  EXPECT_THAT(outcome.reason, HasSubstr("wrote more than 1.05 MB of output"));
  EXPECT_LE(std::filesystem::file_size(here("stdout.log")), 1u << 20);
}

TEST_F(TrialProcess, LeavesTheDiskFullAndIsEnded) {
  TrialCommand command = script("sleep 1000");
  command.spare_disk_bytes = std::int64_t{1} << 60;  // more than any disk has
  const TrialOutcome outcome = judged(command);
  EXPECT_EQ(outcome.outcome, "failed");
  EXPECT_THAT(outcome.reason, HasSubstr("free on the disk of"));
}

TEST_F(TrialProcess, CannotBeStarted) {
  TrialCommand command = script("");
  command.words = {here("nowhere")};
  const TrialOutcome outcome = judged(command);
  EXPECT_EQ(outcome.outcome, "failed");
  EXPECT_THAT(outcome.reason, HasSubstr("cannot be started: No such file or directory."));
}

TEST_F(TrialProcess, EndsWithoutMeasuring) {
  EXPECT_THAT(judged(script("exit 0")).reason, HasSubstr("ended without measuring"));
}

TEST_F(TrialProcess, IsInterruptedWhenAsked) {
  const TrialCommand command = script("echo $$ > " + here("pids") + "; sleep 1000");
  const TrialResult result = run_trial(command, [&] { return !written().empty(); });
  EXPECT_EQ(result.end, TrialEnd::kInterrupted);
  expect_all_gone(1);
}

TEST_F(TrialProcess, EndsWithTheProcessThatStartedIt) {
  const TrialCommand command = script("echo $$ >> " + here("pids") + "; trap '' TERM; setsid sh -c 'echo $$ >> " +
                                      here("pids") + "; sleep 1000' & sleep 1000");
  const pid_t searcher = fork();
  if (searcher == 0) {
    run_trial(command, {});
    _exit(0);
  }
  const auto wait_for = [](const auto& condition) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!condition() && std::chrono::steady_clock::now() < until) std::this_thread::yield();
    return condition();
  };
  ASSERT_TRUE(wait_for([&] { return written().size() == 2; }));
  kill(searcher, SIGKILL);
  waitpid(searcher, nullptr, 0);
  const std::vector<pid_t> pids = written();
  EXPECT_TRUE(wait_for([&] { return gone(pids[0]) && gone(pids[1]); }));
}

}  // namespace
}  // namespace capstan::testing
