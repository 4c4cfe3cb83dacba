// What ranks the points of a search, and files that do not mention tuning.

#include <gmock/gmock.h>

#include "core/text/json.hpp"
#include "tests/cli/tune_fixture.hpp"

namespace capstan::cli {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

TEST_F(Tune, MeasuresOperationsWhereTheyAreTheMetric) {
  config(
      R"("train_micro_batch_size_per_gpu": [4], "autotuning": {"enabled": true, "metric": "flops", "start_profile_step": 1, "end_profile_step": 2})");
  const ProcessResult found = tune({});
  ASSERT_EQ(found.exit_code, 0) << found.err << found.out;
  const Json metrics = Json::parse(result("z0_gas1_tmbspg4/metrics.json")),
             profile = Json::parse(result("z0_gas1_tmbspg4/profile.json"));
  double forward = 0;
  for (const auto& [name, calls] : profile.at("forward").as_object())
    forward += calls.at("work").at("flops").as_number();
  EXPECT_GT(forward, 0);
  EXPECT_NEAR(metrics.at("FLOPS_per_gpu").as_number(), 3 * forward * 1e6 / metrics.at("latency").as_number(),
              1e-6 * forward * 1e6);
}

/// The rate of operations falls with the micro-batch, and the throughput rises with it.
TEST_F(Tune, FindsTheMostOperationsASecondWhereTheyAreTheMetric) {
  config(
      R"("train_micro_batch_size_per_gpu": [1, 2, 4], "autotuning": {"enabled": true, "metric": "FLOPS",
      "arg_mappings": {"train_micro_batch_size_per_gpu": "--micro"}})");
  program("more=\", \\\"FLOPS_per_gpu\\\": $((4000000000 / micro))\"");
  const ProcessResult found = tune_program();
  ASSERT_EQ(found.exit_code, 0) << found.err << found.out;
  EXPECT_THAT(found.out, HasSubstr("the fastest is z0_gas4_tmbspg1"));
  EXPECT_THAT(found.out, AllOf(HasSubstr("z0_gas4_tmbspg1: 4.00 GFLOPS a device\n"),
                               HasSubstr("z0_gas2_tmbspg2: 2.00 GFLOPS a device\n"),
                               HasSubstr("z0_gas1_tmbspg4: 1.00 GFLOPS a device\n")));
  EXPECT_THAT(result("summary.txt"), ContainsRegex("global +\\| +3 +\\| +4e\\+09 +\\| +z0_gas4_tmbspg1"));
  const Json tuning = Json::parse(result("tuning.json"));
  EXPECT_EQ(tuning.at("best"), Json("z0_gas4_tmbspg1"));
  for (const Json& tried : tuning.at("tried").as_array()) {
    const std::string name = tried.at("name").as_string();
    const double micro = name.back() - '0';
    EXPECT_NEAR(tried.at("FLOPS_per_gpu").as_number(), 4e9 / micro, 1) << name;
  }
  EXPECT_EQ(run_capstan(folder_, {"report", "autotuning_results"}).exit_code, 0);
  EXPECT_THAT(result("report.html"), HasSubstr("FLOPS of a device"));
}

TEST_F(Tune, FailsTrialsThatMeasureNoOperationsWhereTheyAreTheMetric) {
  config(R"("train_micro_batch_size_per_gpu": [1], "autotuning": {"enabled": true, "metric": "FLOPS"})");
  program();
  const ProcessResult failed = tune_program();
  EXPECT_EQ(failed.exit_code, 1);
  EXPECT_THAT(failed.err, HasSubstr("it measured no FLOPS_per_gpu: no operation of a forward was profiled."));
}

TEST_F(Tune, TunesAFileThatSaysNothingOfTuningAndTellsWhatBatchItFound) {
  for (const char* section : {"", R"(, "autotuning": {"enabled": false})"}) {
    config(std::string(R"("train_batch_size": 12, "train_micro_batch_size_per_gpu": [2])") + section);
    program();
    const ProcessResult found = tune_program();
    ASSERT_EQ(found.exit_code, 0) << found.err << found.out;
    EXPECT_THAT(found.err,
                HasSubstr("ds_config.json: train_batch_size: 12 is not kept: the search chooses the batch too, "
                          "and the configuration that it finds trains with its own train_batch_size. "
                          "autotuning.max_train_batch_size bounds it."));
    EXPECT_THAT(found.out, HasSubstr("its train_batch_size is 2, where the file that was tuned says 12\n"));
    const bool told = found.err.find("autotuning.enabled: is false, and is taken as true: 'capstan tune' tunes.") !=
                      std::string::npos;
    EXPECT_EQ(told, *section != '\0') << found.err;
  }
}

TEST_F(Tune, TellsNothingOfTheDefaultConfiguration) {
  const ProcessResult shown = run_capstan(folder_, {"tune", "--data", "text.txt", "--model", "mlp", "--dry-run"});
  EXPECT_EQ(shown.exit_code, 0) << shown.err;
  EXPECT_THAT(shown.err, Not(HasSubstr("default.json")));
}

TEST_F(Tune, MakesADryRunForGpusWhereThereAreNone) {
  config(R"("train_micro_batch_size_per_gpu": [1], "zero_optimization": {"stage": 3})");
  ProcessOptions no_gpu;
  no_gpu.folder = folder_.path();
  no_gpu.environment = {"CUDA_VISIBLE_DEVICES="};
  for (const char* device : {"cpu", "cuda"}) {
    const ProcessResult dry = run_process({kCapstan, "tune", "--config", "ds_config.json", "--data", "text.txt",
                                           "--dry-run", "--world", "2", "--device", device},
                                          no_gpu);
    EXPECT_EQ(dry.exit_code, 0) << dry.err;
    EXPECT_THAT(dry.err, testing::Not(HasSubstr("GPUs would refuse")));
  }
}

}  // namespace
}  // namespace capstan::cli
