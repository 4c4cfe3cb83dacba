// Programs that train by capstan::Run, beside 'capstan train'.

#include <gmock/gmock.h>

#include <csignal>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "tests/cli/elastic_run.hpp"

namespace capstan::cli {
namespace {

using ::testing::HasSubstr;

constexpr const char* kProgram = CAPSTAN_TEST_BUILD_DIR "/tests/capstan_test_run_program";
constexpr const char* kExample = CAPSTAN_TEST_BUILD_DIR "/tests/capstan_test_elastic_example";

using Files = std::map<std::string, std::string>;

/// The files below a folder whose names end so, by their path in it.
Files files_in(const std::filesystem::path& folder, const std::string& ending) {
  Files files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    const std::string name = std::filesystem::relative(entry.path(), folder).string();
    if (name.ends_with(ending)) files[name] = read_bytes(entry.path());
  }
  return files;
}

/// Lines of a run without those that tell the time or what the command alone prints before the first step.
std::vector<std::string> lines_of(const std::string& out) {
  std::vector<std::string> lines;
  std::istringstream all(out.substr(std::min(out.find("step=0"), out.size())));
  for (std::string line; std::getline(all, line);) {
    if (line.starts_with("epoch=") || line.starts_with("trained ")) continue;
    lines.push_back(line.substr(0, line.find(", samples/s")));
  }
  return lines;
}

class Run : public ::testing::Test {
 protected:
  Run() { write_bytes(folder_ / "text", some_text()); }

  /// A configuration whose run writes into the folder NAME.
  std::string config(const std::string& name, const std::string& run, const std::string& more = "") const {
    write_bytes(folder_ / (name + ".json"),
                R"({"train_batch_size": 8, "gradient_accumulation_steps": 2, "gradient_clipping": 1.0,
                    "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}, "steps_per_print": 2, )" +
                    more + R"("csv_monitor": {"enabled": true, "output_path": ")" + name +
                    R"(", "job_name": "csv"},
                    "capstan": {"data": {"path": "text", "eval_path": "text"},
                      "model": {"type": "gpt", "params": {"layers": 1, "d": 16, "heads": 2, "seq": 16}},
                      "run": {"save_dir": ")" +
                    name + R"(/ck", )" + run + "}}}");
    return name + ".json";
  }
  ProcessResult program(std::vector<std::string> words, int processes = 1) const {
    words.insert(words.begin(), kProgram);
    if (processes == 1) return run_process(words, options());
    words.insert(words.begin(), {"launch", "-n", std::to_string(processes)});
    return run_capstan(folder_, words, options());
  }
  ProcessResult command(const std::string& config, int processes = 1) const {
    std::vector<std::string> words{"train", "--config", config};
    if (processes > 1) words.insert(words.begin(), {"launch", "-n", std::to_string(processes)});
    return run_capstan(folder_, words, options());
  }
  ProcessOptions options() const { return {.environment = {"OMP_NUM_THREADS=1"}, .folder = folder_.path()}; }
  void expect_equal(const std::string& one, const std::string& other) const {
    for (const char* ending : {"loss.csv", "lr.csv", ".safetensors", "latest", "best"}) {
      const Files files = files_in(folder_ / one, ending);
      EXPECT_FALSE(files.empty()) << ending;
      EXPECT_EQ(files_in(folder_ / other, ending), files) << ending;
    }
  }

  TemporaryFolder folder_;
};

constexpr const char* kSteps = R"("steps": 8, "eval_every": 3, "save_every": 4, "keep_best": true)";

TEST_F(Run, HasTheBitsAndTheLinesOfTheCommand) {
  const ProcessResult command = this->command(config("command", kSteps));
  ASSERT_EQ(command.exit_code, 0) << command.err;
  for (const std::string how : {"train", "loop"}) {
    const ProcessResult own = program({how, config(how, kSteps)});
    ASSERT_EQ(own.exit_code, 0) << own.err;
    expect_equal("command", how);
    std::vector<std::string> lines = lines_of(own.out);
    for (std::string& line : lines) {
      if (const auto at = line.find(how + "/ck"); at != std::string::npos) line.replace(at, how.size(), "command");
    }
    EXPECT_EQ(lines, lines_of(command.out));
  }
}

TEST_F(Run, HasTheBitsOfTheCommandInTwoProcessesAtStage3) {
  const std::string stage = R"("zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0}, )";
  const ProcessResult command = this->command(config("command", kSteps, stage), 2);
  ASSERT_EQ(command.exit_code, 0) << command.err;
  for (const std::string how : {"train", "loop"}) {
    const ProcessResult own = program({how, config(how, kSteps, stage)}, 2);
    ASSERT_EQ(own.exit_code, 0) << own.err;
    expect_equal("command", how);
  }
}

TEST_F(Run, GoesOnFromACheckpointOfTheCommand) {
  ASSERT_EQ(command(config("whole", kSteps)).exit_code, 0);
  ASSERT_EQ(command(config("parts", R"("steps": 4)")).exit_code, 0);
  const ProcessResult rest = program({"loop", config("parts", kSteps), "parts/ck"});
  ASSERT_EQ(rest.exit_code, 0) << rest.err;
  EXPECT_THAT(rest.out, HasSubstr("resumed from parts/ck/global_step4 at step 4"));
  const auto weights = [&](const char* run) {
    return files_in(folder_ / (std::string(run) + "/ck/global_step8"), ".safetensors");
  };
  EXPECT_FALSE(weights("whole").empty());
  EXPECT_EQ(weights("parts"), weights("whole"));
}

TEST_F(Run, IsEndedByASignalAfterTheStepAndSaved) {
  for (const std::string how : {"train", "loop"}) {
    Process run({kProgram, how, config(how, R"("steps": 1000000, "eval_every": 0)")}, options());
    ASSERT_TRUE(run.wait_for_output("step=2,"));
    run.send(SIGTERM);
    const ProcessResult result = run.wait();
    EXPECT_EQ(result.exit_code, 130) << result.err;
    EXPECT_THAT(result.out, HasSubstr("saved " + how + "/ck/global_step"));
    EXPECT_THAT(result.err, HasSubstr("Continue with --resume " + how + "/ck"));
  }
}

TEST_F(Run, GivesTheHandlersOfSignalsBack) {
  const ProcessResult result = program({"handlers", config("run", R"("steps": 1)")});
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

TEST_F(Run, RefusesWhatIsNotARun) {
  const auto error_of = [&](const std::string& how, const std::string& config) {
    const ProcessResult result = program({how, config});
    EXPECT_EQ(result.exit_code, 1) << how;
    return result.err;
  };
  EXPECT_THAT(error_of("unfinished", config("a", R"("steps": 2)")),
              HasSubstr("next: step 1 has had its 2 micro-batches, and was not ended: call engine.backward(loss) and "
                        "engine.step() for each."));
  EXPECT_THAT(error_of("half a step", config("b", R"("steps": 2)")),
              HasSubstr("the program's step has not ended step 1: it must take gradient_accumulation_steps "
                        "micro-batches"));
  EXPECT_THAT(error_of("twice", config("c", R"("steps": 1)")),
              HasSubstr("train: this run has begun. Make another Run."));
  EXPECT_THAT(error_of("engine", config("d", R"("steps": 1)")), HasSubstr("engine: the run is not under way."));
  EXPECT_THAT(error_of("no data", config("e", R"("steps": 1)")), HasSubstr("the data of the run has no samples."));
  EXPECT_THAT(error_of("no data", config("f", R"("seed": 1)")), HasSubstr("capstan.run.steps: not given."));
}

class ElasticExample : public ::testing::Test {
 protected:
  ElasticExample() { write_bytes(folder_ / "text", some_text()); }

  void write_config(const std::string& run, int steps) const {
    write_bytes(folder_ / "ds_config.json",
                R"({"elasticity": {"enabled": true, "version": 0.1, "max_train_batch_size": 12,
                                   "micro_batch_sizes": [2, 3], "max_gpus": 4},
                    "optimizer": {"type": "AdamW", "params": {"lr": 0.005}}, "steps_per_print": null,
                    "gradient_clipping": 1.0, "zero_optimization": {"stage": 2},
                    "csv_monitor": {"enabled": true, "output_path": ")" +
                    run + R"(", "job_name": "csv"},
                    "capstan": {"run": {"steps": )" +
                    std::to_string(steps) + R"(, "save_dir": ")" + run + R"(/ck"}, "elastic": {"every": 7}}})");
  }
  ElasticStart start() const {
    ElasticStart start;
    start.command = kExample;
    return start;
  }

  TemporaryFolder folder_;
};

TEST_F(ElasticExample, LosesNothingWhereProcessesAreKilled) {
  const std::vector<std::string> launch = {"--elastic", "2:2", "--config", "ds_config.json"};
  write_config("killed", 1'000'000);
  int steps = 0;
  {
    ElasticRun run(folder_, launch, {"text"}, start());
    for (std::int64_t generation = 1; generation < 3; ++generation) {
      ASSERT_TRUE(run.await(run.step() + 10, generation));
      ASSERT_NE(run.kill_rank(static_cast<std::size_t>(generation % 2)), 0);
      ASSERT_TRUE(run.await(0, generation + 1));
    }
    ASSERT_TRUE(run.await(run.step() + 10));
    run.send(SIGTERM);
    const ProcessResult result = run.wait();
    ASSERT_EQ(result.exit_code, 130) << result.err;
    EXPECT_THAT(result.out, HasSubstr("2 processes lost, "));
    steps = std::atoi(read_bytes(folder_ / "killed/ck/latest").c_str() + std::string("global_step").size());
  }
  write_config("straight", steps);
  ElasticRun straight(folder_, launch, {"text"}, start());
  const ProcessResult plain = straight.wait();
  ASSERT_EQ(plain.exit_code, 0) << plain.err;
  for (const char* ending : {"loss.csv", ".safetensors"}) {
    const Files files = files_in(folder_ / "straight", ending);
    EXPECT_FALSE(files.empty()) << ending;
    EXPECT_EQ(files_in(folder_ / "killed", ending), files) << ending;
  }
}

TEST_F(ElasticExample, NamesAnotherConfigurationOfTheLauncher) {
  write_config("run", 2);
  std::string other = read_bytes(folder_ / "ds_config.json");
  other.replace(other.find("\"max_train_batch_size\": 12"), 26, "\"max_train_batch_size\": 24");
  write_bytes(folder_ / "other.json", other);
  ElasticRun run(folder_, {"--elastic", "2:2", "--config", "other.json"}, {"text"}, start());
  const ProcessResult result = run.wait();
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.err,
              HasSubstr("ds_config.json: train_batch_size: is 12, and the configuration that the launcher was "
                        "given has 24."));
}

TEST_F(ElasticExample, GoesOnWithoutAProcessThatLeavesWithoutTheCodeOfItsRun) {
  write_bytes(folder_ / "text.txt", some_text());
  std::string config = R"({"elasticity": {"enabled": true, "version": 0.1, "max_train_batch_size": 12,
      "micro_batch_sizes": [2, 3], "max_gpus": 4}, "optimizer": {"type": "AdamW", "params": {"lr": 0.005}},
      "steps_per_print": null, "capstan": {"data": {"path": "text.txt"}, "run": {"steps": 1000000},
      "model": {"type": "gpt", "params": {"layers": 1, "d": 16, "heads": 2, "seq": 16}}}})";
  write_bytes(folder_ / "config.json", config);
  ElasticStart program;
  program.command = kProgram;
  ElasticRun run(folder_, {"--elastic", "1:2", "--config", "config.json"}, {"forgets its code", "config.json"},
                 program);
  ASSERT_TRUE(run.await_members(2));
  ASSERT_NE(run.kill_rank(1, SIGTERM), 0);
  ASSERT_TRUE(run.await_members(1));
  run.send(SIGUSR1);  // the run may grow again: nobody has finished it
  ASSERT_TRUE(run.await_members(2));
  run.send(SIGTERM);
  const ProcessResult result = run.wait();
  EXPECT_EQ(result.exit_code, 130) << result.err;
  EXPECT_THAT(result.err, HasSubstr("has left"));
  EXPECT_THAT(result.out, HasSubstr("0 processes lost"));
}

TEST_F(ElasticExample, CannotBeALoopOfTheProgram) {
  write_config("run", 2);
  ElasticStart loop;
  loop.command = kProgram;
  ElasticRun run(folder_, {"--elastic", "2:2", "--config", "ds_config.json"}, {"loop", "ds_config.json"}, loop);
  const ProcessResult result = run.wait();
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.err, HasSubstr("next: the processes of 'capstan launch --elastic' change within a step"));
}

}  // namespace
}  // namespace capstan::cli
