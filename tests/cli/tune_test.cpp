// Tuning as a user starts it: real searches, of small models.

#include <gmock/gmock.h>
#include <sys/file.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <random>
#include <set>

#include "core/text/json.hpp"
#include "tests/cli/tune_fixture.hpp"

namespace capstan::cli {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kSmall =
    R"("autotuning": {"enabled": true, "start_profile_step": 1, "end_profile_step": 2}, "train_micro_batch_size_per_gpu": [2, 4])";

TEST_F(Tune, AFileWithoutTheSectionIsTunedByItsDefaults) {
  config(R"("train_batch_size": 8)");
  const ProcessResult result = tune({"--dry-run"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err,
              HasSubstr("ds_config.json: has no section autotuning; the defaults of its keys say what is searched."));
  EXPECT_THAT(result.err, HasSubstr("train_batch_size: 8 is not kept: the search chooses the batch too"));
}

TEST_F(Tune, FindsAConfigurationAndTrainsWithIt) {
  config(kSmall);
  const ProcessResult found = tune({"--steps", "4", "--run"});
  ASSERT_EQ(found.exit_code, 0) << found.err << found.out;
  EXPECT_THAT(found.out,
              AllOf(HasSubstr("| tuning_space "), HasSubstr("the fastest is z0_gas"), HasSubstr("trained 4 steps")));
  const Json best = Json::parse(result("ds_config_optimal.json"));
  EXPECT_EQ(best.find("autotuning"), nullptr);
  EXPECT_NE(best.find("train_batch_size"), nullptr);
  EXPECT_THAT(result("summary.txt"), HasSubstr("Tuning completed in "));
  EXPECT_THAT(result("cmd_optimal.txt"), HasSubstr("ds_config_optimal.json"));
  const std::string name = "z0_gas1_tmbspg4";
  for (const char* file :
       {"ds_config.json", "exp.json", "cmd.txt", "stdout.log", "stderr.log", "metrics.json", "outcome.json"}) {
    EXPECT_TRUE(has(name + "/" + file)) << file;
  }
  EXPECT_TRUE(fs::exists(folder_ / ("autotuning_exps/" + name + ".json")));
  const Json metrics = Json::parse(result(name + "/metrics.json"));
  EXPECT_EQ(metrics.at("step_seconds").size(), 2u);
  EXPECT_NEAR(metrics.at("throughput").as_number(),
              metrics.at("train_batch_size").as_number() * 1e6 / metrics.at("latency").as_number(), 1e-3);
}

constexpr const char* kProgramSpace =
    R"("zero_optimization": {"stage": [0, 1, 2]}, "train_micro_batch_size_per_gpu": [1, 2, 4],
       "autotuning": {"enabled": true, "tuner_early_stopping": 0, "arg_mappings": {" train_micro_batch_size_per_gpu ": "--micro "}})";

TEST_F(Tune, HasAReport) {
  config(kProgramSpace);
  program();
  ASSERT_EQ(tune_program({"-n", "2"}).exit_code, 0);
  const ProcessResult made = run_capstan(folder_, {"report", "autotuning_results"});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  const std::string page = result("report.html");
  EXPECT_THAT(page, AllOf(HasSubstr("Predicted and measured"), HasSubstr("<td>z0_gas1_tmbspg4</td>"),
                          HasSubstr("the fastest is z0_gas1_tmbspg4")));
  write_bytes(folder_ / "autotuning_results/tuning.json", "{}");
  EXPECT_EQ(run_capstan(folder_, {"report", "autotuning_results"}).exit_code, 1);
}

TEST_F(Tune, GoesOnWhereItWas) {
  config(kProgramSpace);
  program();
  ASSERT_EQ(tune_program({"-n", "2"}).exit_code, 0);
  const std::string best = result("ds_config_optimal.json");
  const std::size_t before = started().size();
  const ProcessResult again = tune_program({"-n", "2"});
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(started().size(), before);
  EXPECT_EQ(result("ds_config_optimal.json"), best);
}

TEST_F(Tune, ShowsTheSpaceAndStartsNothing) {
  config(R"("autotuning": {"enabled": true, "fast": false}, "zero_optimization": {"stage": [0, 2]},
            "train_micro_batch_size_per_gpu": [1, 2])");
  const ProcessResult shown = tune({"-n", "2", "--dry-run"});
  ASSERT_EQ(shown.exit_code, 0) << shown.err;
  EXPECT_THAT(shown.out, AllOf(HasSubstr("points to try"), HasSubstr("predicted cost"), HasSubstr("z2_")));
  EXPECT_FALSE(fs::exists(folder_ / "autotuning_results"));
}

TEST_F(Tune, SaysWhichLineOfThePlanBreaksAPoint) {
  config(R"("autotuning": {"enabled": true}, "train_micro_batch_size_per_gpu": [1, 1000000])");
  const ProcessResult shown = tune({"--dry-run", "--limit", "1.5G"});
  ASSERT_EQ(shown.exit_code, 0) << shown.err;
  EXPECT_THAT(shown.out, AllOf(HasSubstr("excluded without a trial: 1"), HasSubstr("z0_gas1_tmbspg1000000: needs"),
                               HasSubstr("of 1.50 GB: 'what forward keeps of 1000000 samples'")));
}

TEST_F(Tune, SaysWhatTheSmallestWouldNeedWhereNothingFits) {
  config(R"("autotuning": {"enabled": true}, "train_micro_batch_size_per_gpu": [1, 2])");
  const ProcessResult shown = tune({"--dry-run", "--limit", "1M"});
  EXPECT_EQ(shown.exit_code, 1);
  EXPECT_THAT(shown.err,
              AllOf(HasSubstr("no point is left to try, with at most 1.00 MB a process (--limit). The smallest, "
                              "z0_gas2_tmbspg1, needs"),
                    HasSubstr("'the program and its libraries'")));
}

TEST_F(Tune, TrainsAFileThatIsToBeTunedAndSaysWhatSearches) {
  config(R"("autotuning": {"enabled": true}, "train_micro_batch_size_per_gpu": 4)");
  const std::vector<std::string> words = {"train", "--config", "ds_config.json", "--data", "text.txt", "--steps", "2"};
  const ProcessResult trained = run_capstan(folder_, words);
  EXPECT_EQ(trained.exit_code, 0) << trained.err;
  EXPECT_THAT(
      trained.err,
      HasSubstr("autotuning.enabled: this run trains as the file says; 'capstan tune' searches for the fastest."));
  config(R"("autotuning": {"enabled": true}, "zero_optimization": {"stage": "all", "overlap_comm": [true, false]},
            "train_micro_batch_size_per_gpu": [1, 2])");
  const ProcessResult refused = run_capstan(folder_, words);
  EXPECT_EQ(refused.exit_code, 3);
  EXPECT_THAT(
      refused.err,
      AllOf(HasSubstr("zero_optimization.stage: \"all\" is a list to search"),
            HasSubstr("zero_optimization.overlap_comm: is a list to search, [true, false], and this run trains"),
            HasSubstr("train_micro_batch_size_per_gpu: is a list to search, [1, 2]")));
}

TEST_F(Tune, MeasuresARunThatIsGivenAPathForItsMetrics) {
  config(
      R"("train_micro_batch_size_per_gpu": 4, "autotuning": {"enabled": true, "start_profile_step": 0, "end_profile_step": 1,
            "metric_path": "own.json"})");
  const ProcessResult run =
      run_capstan(folder_, {"train", "--config", "ds_config.json", "--data", "text.txt", "--steps", "50"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  const Json metrics = Json::parse(read_bytes(folder_ / "own.json"));
  EXPECT_EQ(metrics.at("step_seconds").size(), 2u);
  for (const char* name : {"fwd", "bwd", "step", "latency"}) EXPECT_GT(metrics.at(name).as_number(), 0) << name;
}

TEST_F(Tune, LooksAtTheModelOfARunThatIsAskedTo) {
  config(R"("train_micro_batch_size_per_gpu": 4, "autotuning": {"enabled": true, "model_info_path": "info.json",
            "model_info": {"profile": true}, "mp_size": 1})");
  const ProcessResult run =
      run_capstan(folder_, {"train", "--config", "ds_config.json", "--data", "text.txt", "--steps", "50"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  const Json info = Json::parse(read_bytes(folder_ / "info.json"));
  EXPECT_GT(info.at("num_params").as_integer(), 0);
  EXPECT_EQ(info.at("trainable_num_params"), info.at("num_params"));
  EXPECT_GE(info.at("activation_mem_per_gpu").as_integer(), 0);
}

// Programs of one's own.

TEST_F(Tune, FindsTheFastestOfAProgramOfOnesOwnByItsFlags) {
  config(kProgramSpace);
  program();
  const ProcessResult found = tune_program({"-n", "2"});
  ASSERT_EQ(found.exit_code, 0) << found.err << found.out;
  // A batch of 4 at 9 ms.
  EXPECT_THAT(found.out, HasSubstr("the fastest is z0_gas1_tmbspg4"));
  EXPECT_THAT(result("cmd_optimal.txt"), HasSubstr("--micro 4"));
  const std::vector<std::string> lines = started();
  EXPECT_EQ(lines.front(), "stage 3 micro 1");  // the profile
  EXPECT_TRUE(has("profile_model_info/model_info.json"));
}

TEST_F(Tune, FindsTheLeastLatencyWhereThatIsTheMetric) {
  // 3 samples in 8 ms or 4 in 9.
  const std::string rest = R"("train_micro_batch_size_per_gpu": [3, 4], "autotuning": {"enabled": true,
      "arg_mappings": {"train_micro_batch_size_per_gpu": "--micro"}, "metric": )";
  program();
  config(rest + "\"latency\"}");
  const ProcessResult found = tune_program();
  EXPECT_THAT(found.out, HasSubstr("the fastest is z0_gas1_tmbspg3")) << found.err;
  EXPECT_THAT(result("summary.txt"), HasSubstr("8000"));
  config(rest + "\"throughput\"}");
  EXPECT_THAT(tune_program().out, HasSubstr("the fastest is z0_gas1_tmbspg4"));
}

TEST_F(Tune, GoesOnAfterTrialsThatMisbehave) {
  config(kProgramSpace);
  program(R"(
case $stage$micro in
  01) kill -SEGV $$;;
  02) trap '' TERM; while :; do sleep 0.05; done;;
  04) echo 'Error: all is well' >&2;;
  11) setsid sh -c 'sleep 1000' & echo 'no memory for you: out of memory' >&2; exit 1;;
  12) echo '{"latency": "NaN", "throughput": 5}' > "$metric.part"; mv "$metric.part" "$metric"; exit 0;;
  14) exit 0;;
esac)");
  const ProcessResult found = tune_program({"-n", "2", "--time-out", "8"});
  ASSERT_EQ(found.exit_code, 0) << found.err << found.out;
  EXPECT_THAT(found.out,
              AllOf(HasSubstr("z0_gas4_tmbspg1: failed, was ended by signal"),
                    HasSubstr("z0_gas2_tmbspg2: timed out, did not end within 8 s"), HasSubstr("z0_gas1_tmbspg4: "),
                    HasSubstr("z1_gas4_tmbspg1: out of memory, no memory for you"),
                    HasSubstr("z1_gas2_tmbspg2: failed, its metrics.json has a latency or a throughput"),
                    HasSubstr("z1_gas1_tmbspg4: failed, ended without measuring"),
                    HasSubstr("the fastest is z0_gas1_tmbspg4")));
}

TEST_F(Tune, GroupsTheReasonsWhereEveryTrialFails) {
  config(kProgramSpace);
  program("echo 'no data here' >&2; exit 7");
  const ProcessResult failed = tune_program({"-n", "2"});
  EXPECT_EQ(failed.exit_code, 1);
  EXPECT_THAT(failed.err, AllOf(HasSubstr("every trial failed:\n  9 trials failed ("), HasSubstr("no data here")));
}

TEST_F(Tune, FindsTheSameWhenItIsKilledAndStartedAgain) {
  config(kProgramSpace);
  program("sleep 0.1");
  ASSERT_EQ(tune_program({"-n", "2"}).exit_code, 0);
  const std::string wanted = result("ds_config_optimal.json");
  const std::size_t without_kills = started().size();
  fs::remove_all(folder_ / "autotuning_results");
  fs::remove(folder_ / "log");
  std::mt19937 random(5);
  const char* text = std::getenv("CAPSTAN_TEST_KILLS");
  const int kills = text ? std::atoi(text) : 3;
  for (int kill = 0; kill < kills; ++kill) {
    Process search(program_words({"-n", "2"}), [&] {
      ProcessOptions options = logged();
      options.folder = folder_.path();
      return options;
    }());
    // After so many trials more: an instant that no clock chooses.
    const std::size_t more = started().size() + 1 + random() % 3;
    while (started().size() < more && lives(search.pid())) std::this_thread::yield();
    search.send(SIGKILL);
    search.wait();
  }
  const ProcessResult last = tune_program({"-n", "2"});
  ASSERT_EQ(last.exit_code, 0) << last.err;
  EXPECT_EQ(result("ds_config_optimal.json"), wanted);
  // A kill costs the trial that was running, and no other is repeated.
  EXPECT_LE(started().size(), without_kills + static_cast<std::size_t>(kills));
}

TEST_F(Tune, LeavesASummaryWhenItIsInterrupted) {
  config(kProgramSpace);
  program("[ $(wc -l < \"$TUNE_TEST_LOG\") -gt 5 ] && sleep 1000");
  ProcessOptions options = logged();
  options.folder = folder_.path();
  Process search(program_words({"-n", "2"}), options);
  while (started().size() < 6 && lives(search.pid())) std::this_thread::yield();
  search.send(SIGINT);
  const ProcessResult ended = search.wait();
  EXPECT_EQ(ended.exit_code, 130) << ended.err << ended.out;
  EXPECT_THAT(ended.err, HasSubstr("interrupted; the same command goes on where it was."));
  EXPECT_THAT(result("summary.txt"), HasSubstr("| global "));
  EXPECT_TRUE(has("ds_config_optimal.json"));
}

TEST_F(Tune, RunsNothingTwice) {
  config(kProgramSpace);
  program();
  ASSERT_EQ(tune_program({"-n", "2"}).exit_code, 0);
  std::size_t runs = 0;
  for (const auto& entry : fs::directory_iterator(folder_ / "autotuning_results")) runs += entry.is_directory();
  EXPECT_EQ(started().size(), runs);
}

TEST_F(Tune, TakesTheTunerThatIsNamedAndStopsAsTheSectionSays) {
  program();
  const auto said = [&](const std::string& tuning, const std::string& of_capstan = "", const char* breaks = "") {
    fs::remove_all(folder_ / "autotuning_results");
    write_bytes(folder_ / "ds_config.json",
                R"({"optimizer": {"type": "AdamW", "params": {"lr": 0.01}}, "zero_optimization": {"stage": [0, 1, 2]},
                    "train_micro_batch_size_per_gpu": [1, 2, 4], "capstan": {)" +
                    of_capstan + R"(}, "autotuning": {"enabled": true)" + tuning + "}}");
    ProcessOptions options = logged();
    options.folder = folder_.path();
    options.environment.push_back(std::string("CAPSTAN_BAD=") + breaks);
    const ProcessResult result =
        run_process(program_words({"-n", "2", "--plugin-path", CAPSTAN_TEST_BUILD_DIR "/tests/bad_plugins"}), options);
    return std::to_string(result.exit_code) + " " + result.out + result.err;
  };
  EXPECT_THAT(said(R"(, "tuner_type": "gridsearch", "tuner_num_trials": 1)"),
              AllOf(HasSubstr("9 points with the tuner 'gridsearch'"),
                    HasSubstr("ended: tuner_num_trials is reached at every stage."), HasSubstr("experiments: 3.")));
  EXPECT_THAT(said(R"(, "tuner_type": "random", "tuner_early_stopping": 1)"),
              AllOf(HasSubstr("with the tuner 'random'"), HasSubstr("ended: no better point in the last trial.")));
  const std::string other = R"("tuner": {"type": "Bad", "params": {"knob": 2}})";
  EXPECT_THAT(said("", other), AllOf(HasSubstr("0 "), HasSubstr("with the tuner 'Bad'")));
  EXPECT_THAT(said("", other, "points_outside"),
              AllOf(HasSubstr("4 "), HasSubstr("tuner 'Bad': chose point 9, and there are 9, from 0 on.")));
}

TEST_F(Tune, RefusesAFolderThatAnotherSearchHolds) {
  config(kSmall);
  fs::create_directories(folder_ / "autotuning_results");
  const fs::path lock = folder_ / "autotuning_results/.lock";
  write_bytes(lock, std::to_string(getpid()) + "\n");
  const int held = open(lock.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(flock(held, LOCK_EX), 0);
  const ProcessResult refused = tune({});
  close(held);
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err, HasSubstr("another 'capstan tune' works in this folder"));
}

TEST_F(Tune, SaysWhatIsWrongBeforeAnyTrial) {
  struct Case {
    const char* config;
    std::vector<std::string> words;
    int code;
    const char* text;
  };
  const Case cases[] = {
      {R"("autotuning": {"enabled": true, "results_dir": ""})", {}, 3, "autotuning.results_dir: must not be empty."},
      {R"("autotuning": {"enabled": true, "start_profile_step": 5, "end_profile_step": 3})",
       {},
       3,
       "3 is below start_profile_step, 5."},
      {R"("autotuning": {"enabled": true}, "gradient_accumulation_steps": [1, 2])",
       {},
       3,
       "gradient_accumulation_steps: must be"},
      {R"("gradient_clipping": 1)",
       {"--set", "autotuning.enabled=false"},
       3,
       "command line: autotuning.enabled: is false, and 'capstan tune' tunes. Leave it out."},
      {R"("autotuning": {"enabled": true, "tuner_type": "gridserch"})", {}, 3, "Did you mean 'gridsearch'"},
      {R"("autotuning": {"enabled": true, "mp_size": 2})",
       {"-n", "2"},
       3,
       "autotuning.mp_size: is 2, and this release spreads no model over several processes."},
      {R"("autotuning": {"enabled": true, "max_train_batch_size": 1})",
       {"-n", "2"},
       3,
       "is less than one sample for each of 2 processes"},
      {R"("autotuning": {"enabled": true, "min_train_micro_batch_size_per_gpu": 9, "max_train_micro_batch_size_per_gpu": 4})",
       {},
       3,
       "the smallest micro-batch to try, 9, is above the largest, 4"},
      {R"("autotuning": {"enabled": true, "results_dir": "/proc/nothing"})",
       {},
       1,
       "Name another folder in autotuning.results_dir."},
      {R"("autotuning": {"enabled": true, "arg_mappings": {"train_micro_batch_size_per_gpu": "micro"}})",
       {},
       3,
       "autotuning.arg_mappings.train_micro_batch_size_per_gpu: 'micro' is not a flag of a program."},
      {R"("autotuning": {"enabled": true})", {"--run"}, 3, "capstan.run.steps: --run trains, so say how long"},
      {R"("autotuning": {"enabled": true}, "elasticity": {"enabled": true, "max_train_batch_size": 8, "micro_batch_sizes": [2], "min_gpus": 1,
           "max_gpus": 2, "version": 0.1})",
       {"-n", "64"},
       3,
       "64"},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.config);
    config(one.config);
    const ProcessResult refused = tune(one.words);
    EXPECT_EQ(refused.exit_code, one.code) << refused.err << refused.out;
    EXPECT_THAT(refused.err, HasSubstr(one.text));
  }
}

TEST_F(Tune, WantsDataBeforeTheFirstTrial) {
  config(kSmall);
  const ProcessResult refused = run_capstan(folder_, {"tune", "--config", "ds_config.json"});
  EXPECT_EQ(refused.exit_code, 3);
  EXPECT_THAT(refused.err,
              HasSubstr("error: capstan.data.path: not given, and trials train. Name text files or folders: "
                        "--data corpus/.\n"));
  EXPECT_FALSE(has("z0_gas1_tmbspg2"));
  EXPECT_EQ(run_capstan(folder_, {"tune", "--config", "ds_config.json", "--dry-run"}).exit_code, 0);
}

TEST_F(Tune, WantsAConfigurationAmongAProgramsArguments) {
  const ProcessResult refused = run_capstan(folder_, {"tune", "./program.sh", "--micro", "4"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("the program's arguments name no configuration, a file with '.json' in its name"));
  const ProcessResult misspelt = run_capstan(folder_, {"tune", "--dry-runn"});
  EXPECT_EQ(misspelt.exit_code, 2);
  EXPECT_THAT(misspelt.err, HasSubstr("unknown option '--dry-runn' of 'capstan tune'. Did you mean '--dry-run'?"));
}

TEST_F(Tune, BeginsAnewWhereItIsToOverwrite) {
  program();
  for (const char* overwrite : {"false", "true"}) {
    SCOPED_TRACE(overwrite);
    config(
        std::string(
            R"("train_micro_batch_size_per_gpu": [1, 2], "autotuning": {"enabled": true, "exps_dir": "described", "overwrite": )") +
        overwrite + "}");
    ASSERT_EQ(tune_program().exit_code, 0);
    write_bytes(folder_ / "described/left.json", R"({"name": "left", "ds_config": {}})");
    const std::size_t before = started().size();
    ASSERT_EQ(tune_program().exit_code, 0);
    EXPECT_EQ(started().size() > before, overwrite == std::string("true"));
    EXPECT_EQ(fs::exists(folder_ / "described/left.json"), overwrite == std::string("false"));
  }
}

TEST_F(Tune, DeletesNothingWhereTheFolderToOverwriteHoldsAnythingElse) {
  program();
  config(R"("autotuning": {"enabled": true, "results_dir": ".", "overwrite": true})");
  for (const char* time : {"first", "second"}) {
    const ProcessResult refused = tune_program();
    EXPECT_EQ(refused.exit_code, 3) << time;
    EXPECT_THAT(refused.err, HasSubstr("autotuning.overwrite: would delete all that autotuning.results_dir, '"));
    EXPECT_FALSE(fs::exists(folder_ / ".lock")) << "it would mark the folder as a search's";
    EXPECT_TRUE(fs::exists(folder_ / "ds_config.json") && fs::exists(folder_ / "text.txt"));
  }
}

TEST_F(Tune, DoublesTheMicroBatchForAsLongAsThatPays) {
  program();
  const auto points = [&](const std::string& keys) {
    fs::remove_all(folder_ / "autotuning_results");
    config(
        R"("gradient_accumulation_steps": 4, "autotuning": {"enabled": true, "tuner_early_stopping": 0, "arg_mappings": {"train_micro_batch_size_per_gpu": "--micro"},
              "max_train_micro_batch_size_per_gpu": 16)" +
        keys + "}");
    const ProcessResult found = tune_program();
    EXPECT_EQ(found.exit_code, 0) << found.err;
    const Json tuning = Json::parse(result("tuning.json"));
    std::set<std::string> names;
    for (const Json& tried : tuning.at("tried").as_array()) names.insert(tried.at("name").as_string());
    return names;
  };
  using Names = std::set<std::string>;
  EXPECT_EQ(points(""), (Names{"z0_gas8_tmbspg8", "z0_gas6_tmbspg10", "z0_gas5_tmbspg12", "z0_gas4_tmbspg16"}));
  EXPECT_EQ(points(R"(, "num_tuning_micro_batch_sizes": 1)"), (Names{"z0_gas8_tmbspg8", "z0_gas4_tmbspg16"}));
  EXPECT_EQ(points(R"(, "max_train_batch_size": 8)"), (Names{"z0_gas2_tmbspg4", "z0_gas1_tmbspg8"}));
}

TEST_F(Tune, ObeysTheBoundsOfTheSection) {
  const auto shown = [&](const std::string& rest, const std::vector<std::string>& own = {}) {
    config(rest);
    std::vector<std::string> words = {"--dry-run"};
    words.insert(words.end(), own.begin(), own.end());
    const ProcessResult result = tune_program(words);
    return result.out + result.err;
  };
  EXPECT_THAT(shown(R"("autotuning": {"enabled": true, "max_train_micro_batch_size_per_gpu": 4})"),
              AllOf(HasSubstr("tmbspg1 "), HasSubstr("tmbspg4 "), Not(HasSubstr("tmbspg8"))));
  EXPECT_THAT(
      shown(
          R"("autotuning": {"enabled": true, "max_train_micro_batch_size_per_gpu": 4, "min_train_micro_batch_size_per_gpu": 3})"),
      AllOf(HasSubstr("tmbspg3 "), Not(HasSubstr("tmbspg1 "))));
  EXPECT_THAT(
      shown(R"("train_micro_batch_size_per_gpu": [2, 3], "autotuning": {"enabled": true, "min_train_batch_size": 3})"),
      HasSubstr("z0_gas1_tmbspg2: its batch of 2 is below autotuning.min_train_batch_size, 3."));
  const char* known =
      R"("train_micro_batch_size_per_gpu": [1], "autotuning": {"enabled": true, "model_info": {"num_params": 1000000, "num_layers": 2}})";
  EXPECT_THAT(shown(known, {"--limit", "10M"}),
              AllOf(HasSubstr("'parameters, gradients and optimizer of stage 0', 16.0 MB"),
                    HasSubstr("autotuning.model_info.num_layers: has no effect here: no estimate needs it.")));
  EXPECT_THAT(shown(known, {"--limit", "17M"}), HasSubstr("1 point to try"));
  const char* sized =
      R"("zero_optimization": {"stage": 3}, "train_micro_batch_size_per_gpu": [1], "autotuning": {"enabled": true, "fast": false,
      "model_info": {"hidden_size": 100, "num_params": 1000000}})";
  EXPECT_THAT(shown(sized, {"-n", "2"}), HasSubstr("_sppt1000_"));
}

TEST_F(Tune, RecordsATableAndReplaysIt) {
  config(kProgramSpace);
  program();
  const ProcessResult recorded = tune_program({"-n", "2", "--record", "table.json", "--repeats", "2"});
  ASSERT_EQ(recorded.exit_code, 0) << recorded.err << recorded.out;
  const Json table = Json::parse(read_bytes(folder_ / "table.json"));
  EXPECT_EQ(table.at("points").size(), 9u);
  EXPECT_EQ(table.at("points").as_array()[0].at("seconds").size(), 2u);
  const ProcessResult replayed = run_capstan(folder_, {"tune", "--replay", "table.json", "--seeds", "3"});
  EXPECT_EQ(replayed.exit_code, 0) << replayed.err;
  EXPECT_THAT(replayed.out, AllOf(HasSubstr("9 points"), HasSubstr("gridsearch"), HasSubstr("random"),
                                  HasSubstr("model_based"), HasSubstr(" of 3")));
  const ProcessResult nothing = run_capstan(folder_, {"tune", "--replay", "nowhere.json"});
  EXPECT_EQ(nothing.exit_code, 1);
}

}  // namespace
}  // namespace capstan::cli
