// Elastic launches: real processes, and a killer, the test, that knows their numbers alone.

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "tests/cli/elastic_run.hpp"

namespace capstan::cli {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::int64_t kBatch = 12, kSamples = 100'000'000;
constexpr int kEndless = 1'000'000;  // steps

class Elastic : public ::testing::Test {
 protected:
  /// A configuration whose samples are logged in files called `log`. The batch is 12 for 1, 2, 3, 4, 6 and 12
  /// processes, and sample i is the i-th to be trained on.
  std::vector<std::string> train(const std::string& log, int steps, const std::vector<std::string>& more = {}) const {
    write_bytes(
        folder_ / (log + ".json"),
        R"({"elasticity": {"enabled": true, "max_train_batch_size": 12, "micro_batch_sizes": [1, 2, 3],
                      "version": 0.1, "ignore_non_elastic_batch_info": true},
                    "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}, "steps_per_print": null,
                    "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.01, "warmup_num_steps": 20}},
                    "csv_monitor": {"enabled": true, "output_path": ".", "job_name": ")" +
            log + R"(-csv"},
                    "capstan": {"data": {"path": "data", "sequence_length": 8, "shuffle": false,
                      "dataset": {"type": "LoggedNumbers", "params": {"samples": )" +
            std::to_string(kSamples) + R"(, "log": ")" + log +
            R"("}}}, "model": {"type": "gpt", "params": {"layers": 2, "d": 16, "heads": 2, "seq": 8, "vocab": 17}},
                    "elastic": {"every": 7},
                    "plugins": {"path": ")" CAPSTAN_TEST_BUILD_DIR R"(/tests/probe_plugins"}}})");
    write_bytes(folder_ / "data", "x");
    std::vector<std::string> words = {"--config", log + ".json", "--no-progress", "--steps", std::to_string(steps),
                                      "--save",   log + "-ck"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }

  /// What each file of the run's metrics holds, but for those about elasticity and time.
  std::map<std::string, std::string> metrics_of(const std::string& log) const {
    std::map<std::string, std::string> metrics;
    for (const auto& entry : std::filesystem::directory_iterator(folder_ / (log + "-csv"))) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with("Train_Samples_")) metrics[name] = read_bytes(entry.path());
    }
    return metrics;
  }

  /// The values of a metric by sample.
  std::map<std::int64_t, double> values_of(const std::string& log, const std::string& metric) const {
    std::istringstream lines(read_bytes(folder_ / (log + "-csv") / (metric + ".csv")));
    std::string line;
    std::getline(lines, line);
    std::map<std::int64_t, double> values;
    while (std::getline(lines, line)) values[std::atoll(line.c_str())] = std::atof(line.c_str() + line.find(',') + 1);
    return values;
  }

  /// The files of the checkpoint at the end that hold values.
  std::map<std::string, std::string> values_saved(const std::string& log, int steps) const {
    std::map<std::string, std::string> files;
    const auto tag = folder_ / (log + "-ck") / ("global_step" + std::to_string(steps));
    for (const auto& entry : std::filesystem::recursive_directory_iterator(tag)) {
      const auto& path = entry.path();
      if (path.extension() == ".safetensors") files[path.filename().string()] = read_bytes(path);
    }
    return files;
  }

  /// Every step has trained on its own samples, each of them once: of each generation the steps count that the next one
  /// has not done again. `out` tells where each began.
  void expect_each_sample_once(const std::string& log, const std::string& out, int steps) const {
    std::map<std::int64_t, std::int64_t> begins = {{1, 0}};  // the first step of each generation
    std::istringstream lines(out);
    for (std::string line; std::getline(lines, line);) {
      long long generation = 0, step = 0;
      int processes = 0;
      if (std::sscanf(line.c_str(), "generation %lld: %d %*s %*s on from step %lld", &generation, &processes, &step) ==
          3)
        begins[generation] = step;
    }
    std::map<std::int64_t, std::map<std::int64_t, int>> read;  // by generation and sample
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
      const std::string name = entry.path().filename().string();
      if (!name.starts_with(log + ".") || name == log + ".json") continue;
      std::istringstream all(read_bytes(entry.path()));
      std::int64_t generation = 0;
      for (std::string line; std::getline(all, line);) {
        if (line.starts_with("open ")) {
          generation = std::atoll(line.c_str() + 5);
          continue;
        }
        std::istringstream numbers(line);
        for (std::int64_t sample = 0; numbers >> sample;) ++read[generation][sample];
      }
    }
    for (auto begin = begins.begin(); begin != begins.end(); ++begin) {
      const auto next = std::next(begin);
      const std::int64_t end = next == begins.end() ? steps : next->second;
      for (std::int64_t sample = begin->second * kBatch; sample < end * kBatch; ++sample) {
        ASSERT_EQ(read[begin->first][sample], 1) << "sample " << sample << " in generation " << begin->first;
      }
    }
  }

  /// Interrupts the run once it has gone on a little. Returns the step that it has saved.
  int end_of(const ElasticRun& run, const std::string& log) const {
    EXPECT_TRUE(run.await(run.step() + 10));
    run.send(SIGTERM);
    const auto latest = folder_ / (log + "-ck") / "latest";
    EXPECT_TRUE(eventually([&] { return std::filesystem::exists(latest); }));
    return std::atoi(read_bytes(latest).c_str() + std::string("global_step").size());
  }

  /// Ends the run once it has gone on a little, and compares it with one of as many steps that nobody disturbs.
  ProcessResult end_and_compare(ElasticRun& run, const std::string& log, const std::string& processes,
                                const std::vector<std::string>& more = {}) const {
    const int steps = end_of(run, log);
    ProcessResult result = run.wait();
    EXPECT_EQ(result.exit_code, 130) << result.err;
    expect_each_sample_once(log, result.out, steps);
    ElasticRun straight(folder_, {"--elastic", processes + ":" + processes}, train("straight", steps, more));
    const ProcessResult plain = straight.wait();
    EXPECT_EQ(plain.exit_code, 0) << plain.err;
    EXPECT_THAT(plain.out, HasSubstr("0 losses, 0.0 s lost, goodput 100.0 %"));
    expect_each_sample_once("straight", plain.out, steps);
    EXPECT_EQ(metrics_of(log), metrics_of("straight"));
    const auto saved = values_saved("straight", steps);
    EXPECT_FALSE(saved.empty());
    EXPECT_EQ(values_saved(log, steps), saved);
    return result;
  }

  TemporaryFolder folder_;
};

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
  EXPECT_THAT(killed.err, ContainsRegex("rank 0 \\(process [0-9]+\\) was killed by signal Killed; 3 processes go on"));
  EXPECT_THAT(killed.out, HasSubstr("3 losses, "));
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
  EXPECT_THAT(end_and_compare(run, "killed", "2").out, HasSubstr("10 losses, "));
}

TEST_F(Elastic, GoesOnWhereTwoAreKilledAtOnce) {
  ElasticRun run(folder_, {"--elastic", "3:3"}, train("killed", kEndless));
  ASSERT_TRUE(run.await(10));
  const World world = *run.world();
  for (const std::size_t rank : {0, 2}) kill(static_cast<pid_t>(world.processes.at(rank)), SIGKILL);
  ASSERT_TRUE(run.await(0, 2));
  EXPECT_THAT(end_and_compare(run, "killed", "3").out, HasSubstr("2 losses, "));
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
  EXPECT_THAT(result.out, HasSubstr("2 losses, "));
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
  EXPECT_THAT(shown.out,
              ContainsRegex("launch " + std::to_string(run.launcher()) +
                            ": generation 1, 2 processes train, 1 waits; step [0-9,]+ [0-9.]+ s ago; 0 losses"));
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
  const ProcessResult other = run_capstan(folder_, {"launch", "--elastic", "1:2", "./my_program"});
  EXPECT_THAT(other.err, HasSubstr("launch: --elastic goes with 'train' alone, and the command is './my_program'"));
}

}  // namespace
}  // namespace capstan::cli
