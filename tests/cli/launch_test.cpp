#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "tests/cli/training_folder.hpp"
#include "tests/support/process.hpp"
#include "tests/support/ranks.hpp"

namespace capstan::test {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;

const std::string kCapstan = CAPSTAN_TEST_BUILD_DIR "/bin/capstan";

std::vector<std::string> launch(int processes, const std::vector<std::string>& command) {
  std::vector<std::string> words{kCapstan, "launch", "-n", std::to_string(processes)};
  words.insert(words.end(), command.begin(), command.end());
  return words;
}

/// The lines of a run that say what was trained, without what depends on the clock.
std::string losses_of(const std::string& out) {
  std::istringstream lines(out);
  std::string line, losses;
  while (std::getline(lines, line)) {
    if (line.starts_with("loss=")) losses += line.substr(0, line.find(',')) + "\n";
    if (line.find("eval_loss=") != std::string::npos) losses += line + "\n";
  }
  return losses;
}

class Launch : public testing::Test {
 protected:
  TrainingFolder folder_;
};

TEST_F(Launch, StartsAsManyProcessesAsAskedFor) {
  const auto result = run_process(
      launch(3, {"/bin/sh", "-c", "echo rank $RANK of $WORLD_SIZE, here $LOCAL_RANK of $LOCAL_WORLD_SIZE"}));
  EXPECT_EQ(result.exit_code, 0);
  for (const char* rank : {"0", "1", "2"}) {
    EXPECT_THAT(result.out, HasSubstr(std::string("rank ") + rank + " of 3, here " + rank + " of 3\n"));
  }
}

TEST_F(Launch, EndsTheOthersWhenOneFailsAndHasItsExitCode) {
  const auto result = run_process(launch(2, {"/bin/sh", "-c", "if [ $RANK = 1 ]; then exit 4; fi; exec sleep 600"}));
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_THAT(result.err, HasSubstr("rank 1 ended with exit code 4; the others are ended."));
}

TEST_F(Launch, HandsItsSocketToRank0Alone) {
  const auto result =
      run_process(launch(2, {"/bin/sh", "-c", "echo rank $RANK has $(ls -l /proc/$$/fd | grep -c socket:) sockets"}));
  EXPECT_THAT(result.out, HasSubstr("rank 0 has 1 sockets\n"));
  EXPECT_THAT(result.out, HasSubstr("rank 1 has 0 sockets\n"));
}

int times_said(const std::string& text, const std::string& what) {
  int times = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++times;
  return times;
}

TEST_F(Launch, SaysOnceWhatAllProcessesRefuse) {
  const auto refused = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words{"--steps", "2", "--set", "gradient_accumulation_steps=null"};
    words.insert(words.end(), more.begin(), more.end());
    return run_process(launch(2, folder_.train(words)));
  };
  // Found by each process before it meets the others, and after.
  const auto early = refused({"--set", "optimizer.type=Adamm"});
  EXPECT_EQ(early.exit_code, 3);
  EXPECT_EQ(times_said(early.err, "'Adamm'"), 1) << early.err;
  EXPECT_EQ(times_said(early.err, "exit code 3"), 1) << early.err;
  const auto late = refused({"--eval-every", "1"});
  EXPECT_EQ(late.exit_code, 3);
  EXPECT_EQ(times_said(late.err, "capstan.run.eval_every: has no effect without"), 1) << late.err;
}

TEST_F(Launch, SaysWhatOneProcessAloneRefuses) {
  const std::string train = kCapstan + " train --config " + folder_.path_of("config.json") + " --data " +
                            folder_.path_of("text.txt") + " --steps 2 --set gradient_accumulation_steps=null";
  const auto result = run_process(launch(
      2, {"/bin/sh", "-c", "if [ $RANK = 1 ]; then more='--set optimizer.type=Adamm'; fi; exec " + train + " $more"}));
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.err, ContainsRegex("capstan: \\[rank 1\\] error: .*'Adamm'"));
  EXPECT_THAT(result.err, ContainsRegex("capstan: error: rank 0: collective '.*' failed: rank 1 stopped: .*'Adamm'"));
}

TEST_F(Launch, SaysWhatIsWrongWithItsArguments) {
  const auto error_of = [](const std::vector<std::string>& words) {
    const auto result = run_process(words);
    EXPECT_EQ(result.exit_code, 2);
    return result.err;
  };
  EXPECT_THAT(error_of({kCapstan, "launch", "-n", "2"}),
              HasSubstr("launch: what is to be started? For instance: capstan launch -n 2 train"));
  EXPECT_THAT(error_of({kCapstan, "launch", "-n", "0", "train"}), HasSubstr("-n: 1 to 1024 processes, got 0."));
  EXPECT_THAT(run_process(launch(1, {"/nowhere/program"})).err,
              HasSubstr("launch: '/nowhere/program' cannot be started: No such file or directory."));
}

TEST_F(Launch, StartsProgramsOfThePathByOtherLaunchersNames) {
  const auto result = run_process({kCapstan, "launch", "--nproc_per_node=2", "sh", "-c", "echo rank $RANK"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out, HasSubstr("rank 0\n"));
  EXPECT_THAT(result.out, HasSubstr("rank 1\n"));
}

TEST_F(Launch, FindsAWrongOptionOfTheCommandBeforeTheRanksStart) {
  const auto result = run_process(launch(3, {"train", "--lr", "3e-4"}));
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result.err,
            "capstan: error: unknown option '--lr' of 'capstan train'. Write --set optimizer.params.lr=3e-4.\n"
            "'capstan train --help' lists what there is.\n");
}

TEST_F(Launch, TrainsAsOneProcessDoes) {
  const auto arguments = [&](const char* stage) {
    return folder_.train({"--steps", "6", "--set", "gradient_accumulation_steps=null", "--set",
                          std::string("zero_optimization.stage=") + stage, "--eval-data", folder_.path_of("text.txt")});
  };
  std::vector<std::string> alone{kCapstan};
  const auto words = arguments("0");
  alone.insert(alone.end(), words.begin(), words.end());
  const auto one = run_process(alone);
  ASSERT_EQ(one.exit_code, 0) << one.err;
  for (const char* stage : {"0", "2"}) {
    const auto two = run_process(launch(2, arguments(stage)));
    EXPECT_EQ(two.exit_code, 0) << two.err;
    EXPECT_EQ(losses_of(two.out), losses_of(one.out)) << stage;
  }
}

/// Lines of a table by their first word, without what depends on the clock.
std::string line_of(const std::string& text, const std::string& first) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(first)) return line;
  }
  return "";
}

TEST_F(Launch, ReportsWhatProcessesSendToEachOther) {
  const auto result = run_process(launch(2, folder_.train({"--steps", "3", "--report", "stragglers", "--set",
                                                           "gradient_accumulation_steps=null", "--no-progress"})));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  // There are 7,448 parameters of 4 bytes. Each rank sends the other the half that this one sums and the half that it
  // has summed itself, up to what makes the halves equal.
  std::istringstream row(line_of(result.out, "all_reduce "));
  std::string op, calls, bytes, last_calls, last_bytes;
  row >> op >> calls >> bytes >> last_calls >> last_bytes;
  EXPECT_EQ(calls, "3") << result.out;
  EXPECT_EQ(last_calls, "1");
  std::erase(bytes, ',');
  std::erase(last_bytes, ',');
  EXPECT_EQ(std::stoll(bytes), 3 * std::stoll(last_bytes));
  EXPECT_NEAR(std::stod(last_bytes), 7448 * 4, 64);
  EXPECT_THAT(result.out, HasSubstr("Comm. Op            Message Size        Count               Total Latency(ms)"));
  EXPECT_THAT(result.out, ContainsRegex("\nall_reduce\n                    29.1[0-9] KB            3  +[0-9.]+ "));
  EXPECT_THAT(result.out, HasSubstr("Breakdown with straggler effect"));
}

TEST_F(Launch, CountsAsTheLastStepWhatTheStepSentAndNotTheSaveBehindIt) {
  const auto run = [&](std::vector<std::string> more) {
    std::vector<std::string> words{"--steps", "2", "--report", "comms", "--no-progress", "--set", "dump_state=true"};
    for (const char* key : {"gradient_accumulation_steps=null", "zero_optimization.stage=2"}) {
      words.insert(words.end(), {"--set", key});
    }
    words.insert(words.end(), more.begin(), more.end());
    const auto result = run_process(launch(2, folder_.train(words)));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out;
  };
  const auto last_step = [](const std::string& out) {
    std::istringstream row(line_of(out, "together "));
    std::string name, calls, bytes, last_calls, last_bytes;
    row >> name >> calls >> bytes >> last_calls >> last_bytes;
    return last_calls + " " + last_bytes;
  };
  const std::string saved = run({"--save", folder_.path_of("ckpt")});
  EXPECT_EQ(last_step(saved), last_step(run({})));
  EXPECT_THAT(saved, HasSubstr("  ZeRO           stage 2: optimizer state and gradients are partitioned\n"));
  EXPECT_THAT(saved, ContainsRegex("\n  zero_stage [.]+ 2"));
}

TEST_F(Launch, TimesTheExchangeOfGradientsAndTheStepOfZero) {
  for (const char* overlap : {"false", "true"}) {
    const auto result =
        run_process(launch(2, folder_.train({"--steps", "2", "--no-progress", "--set",
                                             "gradient_accumulation_steps=null", "--set", "zero_optimization.stage=2",
                                             "--set", std::string("zero_optimization.overlap_comm=") + overlap, "--set",
                                             "wall_clock_breakdown=true"})));
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const std::string number = "[0-9]+\\.[0-9][0-9]", head = "\n\\[Rank 0\\] time \\(ms\\) \\| ";
    const std::string line = "fwd: " + number + " \\| bwd: " + number + " \\| bwd_inner: " + number +
                             " \\| bwd_allreduce: " + number + " \\| data: " + number + " \\| step: " + number + "\n";
    EXPECT_THAT(result.out, ContainsRegex(head + line));
    EXPECT_THAT(result.out, ContainsRegex(head + "optimizer_gradients: " + number + " \\| optimizer_step: " + number +
                                          " \\| optimizer_allgather: " + number + "\n"));
  }
}

TEST_F(Launch, ProfilesAStepOnceWithTheFiguresOfOneProcess) {
  const auto result = run_process(
      launch(2, folder_.train({"--steps", "2", "--no-progress", "--set", "gradient_accumulation_steps=null", "--set",
                               "zero_optimization.stage=1", "--set", "flops_profiler.enabled=true"})));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto head = result.out.find("Capstan Flops Profiler");
  ASSERT_NE(head, std::string::npos) << result.out;
  EXPECT_EQ(result.out.find("Capstan Flops Profiler", head + 1), std::string::npos);
  for (const char* line : {"world size: +2 +\n", "data parallel size: +2 +\n", "batch size per GPU: +2 +\n",
                           // 2 samples of 16 tokens through 8 * 8 -> 16 -> 256, and all of the parameters.
                           "fwd MACs per GPU: +163.84 KMACs\n", "params per GPU: +7.45 K +\n"}) {
    EXPECT_THAT(result.out, ContainsRegex(line));
  }
}

TEST_F(Launch, LogsCollectivesAsTheConfigurationSays) {
  const auto run = [&](const std::vector<std::string>& keys, const char* stage) {
    std::vector<std::string> words{"--steps",
                                   "2",
                                   "--no-progress",
                                   "--set",
                                   "gradient_accumulation_steps=null",
                                   "--set",
                                   std::string("zero_optimization.stage=") + stage};
    for (const std::string& key : keys) {
      words.push_back("--set");
      words.push_back("comms_logger." + key);
    }
    const auto result = run_process(launch(2, folder_.train(words)));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out;
  };
  const std::string all = run({"enabled=true", "verbose=true", "debug=true"}, "2");
  EXPECT_THAT(all, HasSubstr("comm op: broadcast | [Caller Func: give_values_of_rank_0] | time (ms): "));
  EXPECT_THAT(all, HasSubstr("comm op: reduce_scatter | [Caller Func: reduce] | time (ms): "));
  EXPECT_THAT(all, HasSubstr("\nreduce_scatter | [Caller Func: reduce]\n"));
  EXPECT_THAT(all, HasSubstr("\nall_gather | [Caller Func: gather]\n"));
  const std::string some = run({"enabled=true", "prof_all=false", "prof_ops=[\"all_reduce\"]"}, "0");
  EXPECT_THAT(some, ContainsRegex("\nall_reduce\n                    29.1[0-9] KB            2  +[0-9.]+ "));
  EXPECT_THAT(some, testing::Not(HasSubstr("broadcast")));
  EXPECT_THAT(some, testing::Not(HasSubstr("comm op:")));
  EXPECT_THAT(some, testing::Not(HasSubstr("straggler")));
  // Metrics for the plots of `capstan report`.
  std::ifstream metrics(folder_.path_of("csv/Train_Samples_comms_mb_sent.csv"));
  EXPECT_TRUE(metrics.good());
  EXPECT_THAT(run({"enabled=false"}, "0"), testing::Not(HasSubstr("Comm. Op")));
}

TEST_F(Launch, ResumesInAnotherNumberOfProcessesAndStage) {
  const auto save = folder_.path_of("ckpt");
  const auto train = [&](const char* steps, const char* stage, const std::vector<std::string>& more) {
    std::vector<std::string> words{"--steps", steps,
                                   "--set",   "gradient_accumulation_steps=null",
                                   "--set",   std::string("zero_optimization.stage=") + stage};
    words.insert(words.end(), more.begin(), more.end());
    return folder_.train(words);
  };
  const auto through = run_process(launch(2, train("6", "0", {})));
  const auto first = run_process(launch(4, train("3", "2", {"--save", save})));
  ASSERT_EQ(first.exit_code, 0) << first.err;
  EXPECT_TRUE(std::filesystem::exists(save + "/global_step3/rank_00003.safetensors"));
  const auto second = run_process(launch(2, train("6", "1", {"--resume", save})));
  ASSERT_EQ(second.exit_code, 0) << second.err;
  EXPECT_THAT(second.err, HasSubstr("global_step3: was saved by 4 processes and goes on with 2."));
  EXPECT_EQ(losses_of(first.out) + losses_of(second.out), losses_of(through.out));
}

TEST_F(Launch, EvaluatesEverySampleInAnyNumberOfProcesses) {
  folder_.write("held_out.txt", std::string(9 * 16 + 1, 'e') + "some other text in sample ten");
  const auto eval_of = [&](int processes, const char* stage) {
    const auto result = run_process(launch(
        processes,
        folder_.train({"--steps", "1", "--eval-data", folder_.path_of("held_out.txt"), "--seq", "16", "--set",
                       "train_batch_size=null", "--set", "gradient_accumulation_steps=1", "--set",
                       "train_micro_batch_size_per_gpu=4", "--set", "optimizer.params.lr=1e-30", "--set",
                       "scheduler=null", "--set", std::string("zero_optimization={\"stage\": ") + stage + "}"})));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    const std::string losses = losses_of(result.out);
    return losses.substr(std::min(losses.find("step="), losses.size()));
  };
  // 10 samples are micro-batches of 4, 4 and 2: two of one process, one of the other; at stage 3 both need as many.
  const std::string alone = eval_of(1, "0");
  EXPECT_THAT(alone, HasSubstr(" over 10 samples"));
  EXPECT_THAT(alone, HasSubstr("eval_loss="));
  EXPECT_EQ(eval_of(2, "0"), alone);
  EXPECT_EQ(eval_of(2, "3"), alone);
}

TEST_F(Launch, MpirunsProcessesOfOneHostFindEachOtherWithoutAPort) {
  const auto environment = [&](int rank) {
    const std::string number = std::to_string(rank), key = folder_.path().filename().string();
    return std::vector<std::string>{
        "OMPI_COMM_WORLD_RANK=" + number, "OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_LOCAL_RANK=" + number,
        "OMPI_COMM_WORLD_LOCAL_SIZE=2",   "PMIX_NAMESPACE=" + key,  "TMPDIR=" + folder_.path().string()};
  };
  std::vector<std::string> words{kCapstan};
  const auto arguments = folder_.train({"--steps", "2", "--set", "gradient_accumulation_steps=null"});
  words.insert(words.end(), arguments.begin(), arguments.end());
  Process second(words, {.environment = environment(1)});
  const auto first = run_process(words, {.environment = environment(0)});
  EXPECT_EQ(first.exit_code, 0) << first.err;
  EXPECT_THAT(first.out, HasSubstr("trained 2 steps"));
  EXPECT_EQ(second.wait().exit_code, 0);
}

/// The processes that a launcher has started.
std::vector<pid_t> children_of(pid_t launcher) {
  std::ifstream list("/proc/" + std::to_string(launcher) + "/task/" + std::to_string(launcher) + "/children");
  std::vector<pid_t> children;
  for (pid_t child = 0; list >> child;) children.push_back(child);
  return children;
}

TEST_F(Launch, StopsWithASentenceWhenARankIsKilledAndTheCheckpointLoads) {
  const auto save = folder_.path_of("ckpt");
  Process run(launch(2, folder_.train({"--steps", "100000000", "--set", "gradient_accumulation_steps=null", "--set",
                                       "zero_optimization.stage=2", "--save", save, "--save-every", "2"})));
  ASSERT_TRUE(run.wait_for_output("saved " + save + "/global_step4"));
  const auto ranks = children_of(run.pid());
  ASSERT_EQ(ranks.size(), 2u);
  kill(ranks[1], SIGKILL);
  const auto result = run.wait();
  EXPECT_EQ(result.exit_code, 128 + SIGKILL);
  EXPECT_THAT(result.err, HasSubstr("rank 1 was killed by SIGKILL"));
  EXPECT_THAT(result.err, testing::Not(HasSubstr("[c10d]")));
  EXPECT_FALSE(read_checkpoint(save, latest_tag(save)).tensors.empty());
}

TEST_F(Launch, SavesAndEndsWithItsCodeWhenInterrupted) {
  const auto save = folder_.path_of("ckpt");
  Process run(
      launch(2, folder_.train({"--steps", "100000000", "--set", "gradient_accumulation_steps=null", "--save", save})));
  ASSERT_TRUE(run.wait_for_output("loss="));
  run.send(SIGTERM);
  const auto result = run.wait();
  EXPECT_EQ(result.exit_code, 130);
  EXPECT_THAT(result.err, HasSubstr("interrupted after step"));
  EXPECT_FALSE(read_checkpoint(save, latest_tag(save)).tensors.empty());
}

/// Stops rank 1 of two, so that what both do does not end, interrupts them, and waits for rank 0 to say `said` and to
/// end.
ProcessResult interrupt_what_does_not_end(Process& run, const std::string& said) {
  const auto ranks = children_of(run.pid());
  EXPECT_EQ(ranks.size(), 2u);
  if (ranks.size() != 2) return run.wait();
  kill(ranks[1], SIGSTOP);
  run.send(SIGTERM);
  EXPECT_TRUE(run.wait_for_output(said));
  while (children_of(run.pid()).size() > 1) std::this_thread::yield();
  kill(ranks[1], SIGKILL);
  return run.wait();
}

TEST_F(Launch, EndsAfterABoundedTimeWhenInterruptedInAStepThatDoesNotEnd) {
  const auto save = folder_.path_of("ckpt");
  const auto train = [&](const char* steps, const char* folder_option) {
    return launch(2,
                  folder_.train({"--steps", steps, "--set", "gradient_accumulation_steps=null", folder_option, save}));
  };
  ASSERT_EQ(run_process(train("2", "--save")).exit_code, 0);
  Process run(train("100000000", "--resume"), {.environment = {"CAPSTAN_INTERRUPT_SECONDS=0.5"}});
  ASSERT_TRUE(run.wait_for_output("step=4"));
  const auto result = interrupt_what_does_not_end(
      run,
      "which did not end within 0.5 s (CAPSTAN_INTERRUPT_SECONDS). Continue with --resume " + save + ":global_step2");
  EXPECT_EQ(result.exit_code, 130);
  EXPECT_THAT(result.err, ContainsRegex("capstan: warning: interrupted in step [0-9]+, which did not end within"));
}

TEST_F(Launch, EndsAfterABoundedTimeWhenInterruptedInAnEvaluationThatDoesNotEnd) {
  std::string text;
  while (text.size() < 600'000) text += "line " + std::to_string(text.size()) + " of what is held out;\n";
  folder_.write("held_out.txt", text);
  Process run(launch(2, folder_.train({"--steps", "1", "--set", "gradient_accumulation_steps=null", "--eval-data",
                                       folder_.path_of("held_out.txt")})),
              {.environment = {"CAPSTAN_INTERRUPT_SECONDS=0.5"}});
  ASSERT_TRUE(run.wait_for_output("step=1,"));
  const auto result = interrupt_what_does_not_end(
      run,
      "interrupted in the evaluation after step 1, which did not get on within 0.5 s (CAPSTAN_INTERRUPT_SECONDS). "
      "Nothing was saved: --save is not given.");
  EXPECT_EQ(result.exit_code, 130);
}

TEST_F(Launch, EndsAfterABoundedTimeWhenInterruptedInASaveThatDoesNotEnd) {
  if (run_process({"strace", "-o", "/dev/null", "true"}).exit_code != 0) {
    GTEST_SKIP() << "strace is missing or may not trace here";
  }
  std::vector<std::string> words{
      "strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=fsync", "-e", "inject=fsync:delay_enter=600000000",
      kCapstan};
  const auto arguments = folder_.train({"--steps", "100000000", "--save", folder_.path_of("ckpt"), "--save-every", "2",
                                        "--set", "csv_monitor.enabled=false"});
  words.insert(words.end(), arguments.begin(), arguments.end());
  Process run(words, {.environment = {"CAPSTAN_INTERRUPT_SECONDS=600", "CAPSTAN_INTERRUPT_SAVE_SECONDS=0.5"}});
  ASSERT_TRUE(run.wait_for_output("step=2,"));
  const auto traced = children_of(run.pid());
  ASSERT_EQ(traced.size(), 1u);
  kill(traced[0], SIGTERM);
  EXPECT_TRUE(run.wait_for_output(
      "interrupted in the save after step 2, which did not get on within 0.5 s (CAPSTAN_INTERRUPT_SAVE_SECONDS). No "
      "checkpoint had been saved yet."));
  // The process exits then, but strace goes on holding the thread in fsync for its ten minutes, and does not end before
  // the thread does. Both end here: the thread would be in the way of the folder's removal.
  kill(traced[0], SIGKILL);
  run.send(SIGKILL);
  run.wait();
}

/// Whether the process handles the signal itself.
bool handles(pid_t process, int number) {
  std::ifstream status("/proc/" + std::to_string(process) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (!line.starts_with("SigCgt:")) continue;
    return (std::stoull(line.substr(7), nullptr, 16) >> (number - 1)) & 1;
  }
  return false;
}

TEST_F(Launch, EndsAtOnceWhenInterruptedWhileItWaitsForTheOthersAndRank0SaysSo) {
  std::vector<std::string> words{kCapstan};
  const auto arguments = folder_.train({"--steps", "2", "--set", "gradient_accumulation_steps=null"});
  words.insert(words.end(), arguments.begin(), arguments.end());
  const std::string key = folder_.path().filename().string();
  for (const std::string rank : {"0", "1"}) {
    Process alone(words, {.environment = {"OMPI_COMM_WORLD_RANK=" + rank, "OMPI_COMM_WORLD_SIZE=2",
                                          "OMPI_COMM_WORLD_LOCAL_RANK=" + rank, "OMPI_COMM_WORLD_LOCAL_SIZE=2",
                                          "PMIX_NAMESPACE=" + key + rank, "TMPDIR=" + folder_.path().string()}});
    while (!handles(alone.pid(), SIGTERM)) std::this_thread::yield();
    alone.send(SIGTERM);
    const auto result = alone.wait();
    EXPECT_EQ(result.exit_code, 130);
    EXPECT_EQ(result.err, rank == "0" ? "\ncapstan: interrupted before the first step\n" : "");
  }
}

TEST_F(Launch, SaysWhoHasNotComeInItsOwnWordsAlone) {
  const RankEnvironments environments(2);
  auto environment = environments.of(0);
  environment.push_back("CAPSTAN_COLLECTIVE_TIMEOUT=1");
  std::vector<std::string> words{kCapstan};
  const auto arguments = folder_.train({"--steps", "2", "--set", "gradient_accumulation_steps=null"});
  words.insert(words.end(), arguments.begin(), arguments.end());
  const auto result = run_process(words, {.environment = environment});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("\n  rank 0  has arrived\n  rank 1  has not appeared\n"));
  EXPECT_THAT(result.err, testing::Not(HasSubstr("[c10d]")));
}

TEST_F(Launch, RefusesABoundThatIsNoNumber) {
  const auto result =
      run_process(launch(2, folder_.train({"--steps", "2"})), {.environment = {"CAPSTAN_INTERRUPT_SECONDS=soon"}});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("CAPSTAN_INTERRUPT_SECONDS is 'soon'; a number of seconds above 0 is needed."));
  EXPECT_THAT(
      run_process(launch(1, folder_.train({"--steps", "2"})), {.environment = {"CAPSTAN_INTERRUPT_SAVE_SECONDS=0"}})
          .err,
      HasSubstr("CAPSTAN_INTERRUPT_SAVE_SECONDS is '0'; a number of seconds above 0 is needed."));
}

}  // namespace
}  // namespace capstan::test
