// Elastic launches: real processes, and a killer, the test, that knows their numbers alone.

#include <gmock/gmock.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>

#include "tests/cli/elastic_fixture.hpp"

namespace capstan::cli {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

std::string stage_set(int stage) { return "zero_optimization.stage=" + std::to_string(stage); }

class ElasticStage : public Elastic, public ::testing::WithParamInterface<int> {};

TEST_P(ElasticStage, LosesNothingWhereProcessesAreKilledAndReplaced) {
  const std::vector<std::string> stage = {"--set", stage_set(GetParam())};
  ElasticRun run(folder_, {"--elastic", "3:3", "--spares", "3"}, train("killed", kEndless, stage));
  ASSERT_TRUE(run.await_waiting(3));
  std::int64_t generation = 1;
  for (const std::size_t rank : {1, 0, 2}) {
    ASSERT_TRUE(run.await(run.step() + 10, generation++));
    ASSERT_NE(run.kill_rank(rank), 0);
  }
  ASSERT_TRUE(run.await(0, generation));
  const ProcessResult killed = end_and_compare(run, "killed", "3", stage);
  EXPECT_THAT(killed.err, ContainsRegex("rank 0 \\(process [0-9]+\\) was killed by SIGKILL; 3 processes go on"));
  EXPECT_THAT(killed.out, HasSubstr("3 processes lost, "));
}

std::vector<int> stages() { return std::getenv("CAPSTAN_TEST_ALL") ? std::vector{0, 1, 2, 3} : std::vector{0, 3}; }
INSTANTIATE_TEST_SUITE_P(, ElasticStage, ::testing::ValuesIn(stages()),
                         [](const auto& info) { return "Stage" + std::to_string(info.param); });

TEST_F(Elastic, LosesNothingInTenKillsAndKeepsItsSurvivors) {
  ElasticRun run(folder_, {"--elastic", "2:2", "--spares", "1"}, train("killed", kEndless));
  for (int kill = 0; kill < 10; ++kill) {
    ASSERT_TRUE(run.await(run.step() + 3, kill + 1)) << kill;
    const std::size_t rank = static_cast<std::size_t>(kill) % 2;
    const std::int64_t survivor = run.world()->processes.at(1 - rank);
    ASSERT_NE(run.kill_rank(rank), 0);
    ASSERT_TRUE(run.await(0, kill + 2));
    EXPECT_EQ(run.world()->processes.at(1 - rank), survivor);
  }
  EXPECT_THAT(end_and_compare(run, "killed", "2").out, HasSubstr("10 processes lost, "));
}

TEST_F(Elastic, GoesOnWhereTwoAreKilledAtOnce) {
  ElasticRun run(folder_, {"--elastic", "3:3"}, train("killed", kEndless));
  ASSERT_TRUE(run.await(10));
  const World world = *run.world();
  for (const std::size_t rank : {0, 2}) kill(static_cast<pid_t>(world.processes.at(rank)), SIGKILL);
  ASSERT_TRUE(run.await(0, 2));
  EXPECT_THAT(end_and_compare(run, "killed", "3").out, HasSubstr("2 processes lost, "));
}

TEST_F(Elastic, ShrinksAndGrowsWithTheSameSamplesAndLosses) {
  // So slow that losses are far from zero at the end, and rounding does not grow.
  const std::vector<std::string> slow = {"--set", "optimizer.params.lr=1e-5", "--set", "scheduler=null"};
  ElasticRun run(folder_, {"--elastic", "1:4"}, train("changing", kEndless, slow));
  ASSERT_TRUE(run.await_members(4));
  for (std::size_t left = 3; left >= 1; --left) {
    run.kill_rank(left, SIGTERM);
    ASSERT_TRUE(run.await_members(left));
  }
  for (const std::size_t members : {2, 3, 4}) {
    run.send(SIGUSR1);
    ASSERT_TRUE(run.await_members(members));
  }
  const int steps = end_of(run, "changing");
  const ProcessResult result = run.wait();
  EXPECT_THAT(result.out, ContainsRegex("generation 7: 4 processes go on from step .* has joined"));
  EXPECT_THAT(result.err, Not(HasSubstr("was killed")));
  expect_each_sample_once("changing", result.out, steps);

  ElasticRun straight(folder_, {"--elastic", "4:4"}, train("straight", steps, slow));
  ASSERT_EQ(straight.wait().exit_code, 0);
  const auto losses = values_of("changing", "Train_Samples_train_loss"),
             wanted = values_of("straight", "Train_Samples_train_loss");
  ASSERT_EQ(losses.size(), wanted.size());
  for (const auto& [sample, loss] : wanted) ASSERT_NEAR(losses.at(sample), loss, 1e-4 * std::abs(loss)) << sample;
}

TEST_F(Elastic, ShrinksAtOnceAndGrowsAgainWhereNoSpareWaits) {
  ElasticRun run(folder_, {"--elastic", "1:2"}, train("killed", kEndless));
  ASSERT_TRUE(run.await(20));
  run.kill_rank(1);
  ASSERT_TRUE(run.await(0, 3));
  const int steps = end_of(run, "killed");
  const ProcessResult result = run.wait();
  EXPECT_THAT(result.out, ContainsRegex("generation 2: 1 process goes on from step"));
  EXPECT_THAT(result.out, ContainsRegex("generation 3: 2 processes go on from step .* has joined"));
  expect_each_sample_once("killed", result.out, steps);
}

TEST_F(Elastic, CountsAProcessThatIsStoppedAsLost) {
  ElasticRun run(folder_, {"--elastic", "2:2", "--spares", "1"}, train("stopped", kEndless));
  ASSERT_TRUE(run.await(10));
  const pid_t stopped = run.kill_rank(1, SIGSTOP);
  ASSERT_TRUE(run.await(0, 2));
  EXPECT_THAT(end_and_compare(run, "stopped", "2").err,
              HasSubstr("rank 1 (process " + std::to_string(stopped) +
                        ") has been stopped for 3 s: it counts as lost, and is ended."));
}

TEST_F(Elastic, SavesAndEndsAfterASignalToTheLauncher) {
  ElasticRun run(folder_, {"--elastic", "2:2"}, train("ended", kEndless));
  ASSERT_TRUE(run.await(10));
  run.send(SIGTERM);
  const ProcessResult result = run.wait();
  EXPECT_EQ(result.exit_code, 130);
  EXPECT_THAT(result.err,
              ContainsRegex("interrupted after step [0-9,]+ of 1,000,000. Continue with --resume ended-ck"));
  ElasticRun again(
      folder_, {"--elastic", "2:2"},
      train("ended", std::atoi(read_bytes(folder_ / "ended-ck/latest").c_str() + 11) + 5, {"--resume", "ended-ck"}));
  EXPECT_EQ(again.wait().exit_code, 0);
}

TEST_F(Elastic, SavesAndEndsWhereTheLauncherIsKilled) {
  ElasticRun run(folder_, {"--elastic", "2:2", "--spares", "1"}, train("ended", kEndless));
  ASSERT_TRUE(run.await(10));
  const World world = *run.world();
  run.send(SIGKILL);
  for (const std::int64_t process : world.processes) {
    EXPECT_TRUE(eventually([&] { return kill(static_cast<pid_t>(process), 0) != 0; }));
  }
  EXPECT_TRUE(eventually([&] { return std::filesystem::exists(folder_ / "ended-ck/latest"); }));
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    EXPECT_NE(WorldFolder::launcher_of(entry.path()), run.launcher()) << entry.path();
  }
  run.wait();
}

TEST_F(Elastic, GoesOnInAnotherLaunchWhereAllOfOneWereKilled) {
  const std::vector<std::string> words = train("log", kEndless);
  ElasticRun run(folder_, {"--elastic", "2:2"}, words);
  ASSERT_TRUE(run.await(20));
  run.send(SIGSTOP);  // so that it replaces nobody
  for (const std::size_t rank : {0, 1}) run.kill_rank(rank);
  run.send(SIGKILL);
  run.wait();
  ElasticRun again(folder_, {"--elastic", "2:2"}, words);
  ASSERT_TRUE(again.await(21, 2));
  const ProcessResult result = end_and_compare(again, "log", "2");
  EXPECT_THAT(result.err, ContainsRegex("lost with all its processes, at step [0-9]+. This one goes on from what"));
  EXPECT_THAT(result.out, ContainsRegex("generation 2: 2 processes go on from step [0-9]+ .all processes and their"));
  EXPECT_THAT(result.out, HasSubstr("2 processes lost, "));
}

TEST_F(Elastic, RefusesAnotherConfigurationAndSavesWhereTooFewAreLeft) {
  ElasticRun run(folder_, {"--elastic", "2:2"}, train("few", kEndless));
  ASSERT_TRUE(run.await(10));
  std::string text = read_bytes(folder_ / "few.json");
  text.replace(text.find("\"lr\": 0.01"), 10, "\"lr\": 0.02");
  write_bytes(folder_ / "few.json", text);
  run.kill_rank(0);
  const ProcessResult result = run.wait();
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("has changed since the launch began: this process does not join."));
  EXPECT_THAT(result.err, HasSubstr("3 processes in a row ended before they could join. No more are started."));
  EXPECT_THAT(result.err, HasSubstr("launch: 1 process is left where at least 2 are needed."));
  EXPECT_THAT(result.err,
              ContainsRegex("the run ends after step [0-9,]+ of 1,000,000. Continue with --resume few-ck:"));
  EXPECT_TRUE(std::filesystem::exists(folder_ / "few-ck/latest"));
}

TEST_F(Elastic, GivesUpALastSaveThatWritesNothing) {
  if (run_process({"strace", "-o", "/dev/null", "true"}).exit_code != 0) {
    GTEST_SKIP() << "strace is missing or may not trace here";
  }
  std::vector<std::string> words = {"strace",      "-f",        "-qq",
                                    "-o",          "/dev/null", "-e",
                                    "trace=fsync", "-e",        "inject=fsync:delay_enter=3000000",
                                    kCapstan,      "launch",    "--elastic",
                                    "2:2",         "train"};
  for (const std::string& word :
       train("hangs", kEndless, {"--set", "capstan.elastic.wait=0", "--set", "steps_per_print=1"}))
    words.push_back(word);
  Process run(words, {.environment = {"CAPSTAN_INTERRUPT_SAVE_SECONDS=0.3"}, .folder = folder_.path()});
  ASSERT_TRUE(run.wait_for_output("step=9,"));
  const std::vector<pid_t> launcher = children_of(run.pid());
  ASSERT_EQ(launcher.size(), 1U);
  kill(children_of(launcher.front()).front(), SIGKILL);
  const ProcessResult result = run.wait();
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("launch: a save was given up: no process has written anything for 0.3 s."));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "hangs-ck/latest"));
}

TEST_F(Elastic, WaitsForProcessesAsLongAsItMay) {
  ElasticRun run(folder_, {"--elastic", "2:2"}, train("few", kEndless, {"--set", "capstan.elastic.wait=0"}));
  ASSERT_TRUE(run.await(10));
  run.kill_rank(1);
  const ProcessResult result = run.wait();
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("launch: 1 process is left where at least 2 are needed, and there were no more "
                                    "within 0 s (capstan.elastic.wait)."));
  EXPECT_TRUE(std::filesystem::exists(folder_ / "few-ck/latest"));
}

TEST_F(Elastic, EndsWithTheErrorThatAllProcessesFind) {
  ElasticRun run(folder_, {"--elastic", "2:2"}, train("wrong", 10, {"--set", "capstan.run.eval_every=3"}));
  const ProcessResult result = run.wait();
  EXPECT_EQ(result.exit_code, 3);
  const std::string error = "capstan.run.eval_every: has no effect without";
  const std::size_t first = result.err.find(error);
  EXPECT_NE(first, std::string::npos) << result.err;
  EXPECT_EQ(result.err.find(error, first + 1), std::string::npos) << result.err;
}

TEST_F(Elastic, ShowsWhoTrains) {
  ElasticRun run(folder_, {"--elastic", "2:2", "--spares", "1"}, train("shown", kEndless));
  ASSERT_TRUE(run.await(10));
  ASSERT_TRUE(run.await_waiting(1));
  const World world = *run.world();
  const ProcessResult shown = run_capstan(folder_, {"launch", "--status"});
  EXPECT_THAT(
      shown.out,
      ContainsRegex("launch " + std::to_string(run.launcher()) +
                    ": generation 1, 2 processes train, 1 waits; step [0-9,]+ [0-9.]+ s ago; 0 processes lost"));
  for (const std::int64_t process : world.processes) {
    EXPECT_THAT(shown.out, HasSubstr("process " + std::to_string(process)));
  }
  run.send(SIGTERM);
  run.wait();
}

TEST_F(Elastic, SaysWhatIsWrongBeforeItStartsAnything) {
  const std::vector<std::string> good = train("wrong", 10);
  const auto error_of = [&](const std::vector<std::string>& launch, const std::vector<std::string>& more) {
    std::vector<std::string> words = good;
    words.insert(words.end(), more.begin(), more.end());
    const ProcessResult result = ElasticRun(folder_, launch, words).wait();
    EXPECT_NE(result.exit_code, 0);
    return result.err;
  };
  EXPECT_THAT(error_of({"--elastic", "4:2"}, {}),
              HasSubstr("--elastic: MIN is at least 1, MAX at most 1024 and not below MIN, got 4:2."));
  EXPECT_THAT(error_of({"--elastic", "4"}, {}), HasSubstr("--elastic: MIN:MAX, for instance 1:4, got 4."));
  EXPECT_THAT(error_of({"--elastic", "1:4", "-n", "5"}, {}),
              HasSubstr("launch: -n 5 is not between MIN and MAX of --elastic 1:4."));
  EXPECT_THAT(error_of({"-n", "2", "--spares", "1"}, {}),
              HasSubstr("launch: --spares has no effect without --elastic."));
  EXPECT_THAT(
      error_of({"--elastic", "1:5", "-n", "5"}, {}),
      HasSubstr("elasticity: the data-parallel size 5 does not fit the elastic batch 12. Sizes that do: 1, 2, 3, "
                "4, 6, 12."));
  EXPECT_THAT(error_of({"--elastic", "1:2"}, {"--set", "elasticity.enabled=false"}),
              HasSubstr("elasticity.enabled: must be true for an elastic batch"));
  const ProcessResult program = run_capstan(folder_, {"launch", "--elastic", "1:2", "./my_program"});
  EXPECT_THAT(program.err, HasSubstr("launch: --elastic needs the configuration that the program './my_program' trains "
                                     "with. Give it as --config FILE, before the program"));
  const ProcessResult other = run_capstan(folder_, {"launch", "--elastic", "1:2", "eval"});
  EXPECT_THAT(other.err,
              HasSubstr("launch: --elastic goes with 'train' and with programs, and the command is 'eval'."));
  EXPECT_THAT(error_of({"--elastic", "1:2", "--config", "elastic.json"}, {}),
              HasSubstr("launch: --config stands before 'train', which takes it itself"));
}

}  // namespace
}  // namespace capstan::cli
