#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "core/text/json.hpp"
#include "tests/cli/capstan_process.hpp"

namespace capstan::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class ConfigCommands : public ::testing::Test {
 protected:
  ConfigCommands()
      : folder_(std::filesystem::path(::testing::TempDir()) / ("config_commands_" + std::to_string(getpid()))) {
    std::filesystem::create_directories(folder_);
    for (const char* name : {"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"}) unsetenv(name);
  }
  ~ConfigCommands() override { std::filesystem::remove_all(folder_); }

  std::string file(const std::string& text) {
    const auto path = folder_ / "c.json";
    std::ofstream(path) << text;
    return path.string();
  }

  std::string text_of_file() {
    std::ifstream in(folder_ / "c.json");
    return {std::istreambuf_iterator<char>(in), {}};
  }

  std::filesystem::path folder_;
};

TEST_F(ConfigCommands, ValidateReportsEveryProblemInOrder) {
  const std::string path = file("{\"train_batch_size\": 8,\n \"gradient_cliping\": 1,\n \"steps_per_print\": 0}");
  const ProgramEnd end = run_capstan({"validate", path});
  EXPECT_EQ(end.exit_code, 3);
  const auto slip = end.text.find(path + ":2:2: gradient_cliping: unknown key. Did you mean 'gradient_clipping'?");
  const auto range = end.text.find(path + ":3:2: steps_per_print: must be above 0, got 0.");
  ASSERT_NE(slip, std::string::npos) << end.text;
  ASSERT_NE(range, std::string::npos) << end.text;
  EXPECT_LT(slip, range);
  EXPECT_THAT(end.text, HasSubstr("not valid: 2 errors"));
}

TEST_F(ConfigCommands, ValidateChecksTheWorldThatItIsGiven) {
  const std::string path = file(R"({"train_batch_size": 30, "gradient_clipping": 1})");
  EXPECT_EQ(run_capstan({"validate", path}).exit_code, 0);
  const ProgramEnd end = run_capstan({"validate", path, "--world", "4"});
  EXPECT_EQ(end.exit_code, 3);
  EXPECT_THAT(end.text, HasSubstr("The data-parallel size is 4: --world."));
}

TEST_F(ConfigCommands, ValidatePrintsErrorsLast) {
  const std::string path = file("{\"train_batch_size\": 0,\n \"bfloat16\": {\"enabled\": true}}");
  const ProgramEnd end = run_capstan({"validate", path});
  const auto notice = end.text.find("notice: " + path + ": gradient_clipping: is not given");
  const auto warning = end.text.find("warning: " + path + ":2:2: bfloat16: old spelling; write \"bf16\".");
  const auto error = end.text.find("error: " + path + ":1:2: train_batch_size: must be above 0, got 0.");
  ASSERT_NE(notice, std::string::npos) << end.text;
  ASSERT_NE(warning, std::string::npos) << end.text;
  ASSERT_NE(error, std::string::npos) << end.text;
  EXPECT_LT(notice, warning);
  EXPECT_LT(warning, error);
}

TEST_F(ConfigCommands, AValueOfTheCommandLineIsNotBlamedOnTheFile) {
  const std::string path = file(R"({"train_batch_size": 8, "gradient_clipping": 1, "steps_per_print": 0})");
  const ProgramEnd end = run_capstan({"validate", path, "--set", "gradient_clipping=-1", "--set", "foo.bar=1"});
  EXPECT_EQ(end.exit_code, 3);
  EXPECT_THAT(end.text, HasSubstr("error: command line: gradient_clipping: must be at least 0, got -1.\n"));
  EXPECT_THAT(end.text, HasSubstr("error: command line: foo: unknown key."));
  EXPECT_THAT(end.text, HasSubstr("error: " + path + ":1:49: steps_per_print: must be above 0, got 0."));
  const ProgramEnd json = run_capstan({"validate", path, "--set", "gradient_clipping=-1", "--json"});
  EXPECT_THAT(json.text, HasSubstr("\"from\": \"command line\""));
  const ProgramEnd built_in = run_capstan({"plan", "--model", "gpt:foo"});
  EXPECT_EQ(built_in.exit_code, 3);
  EXPECT_THAT(built_in.text, HasSubstr("error: command line: capstan.model.params.size: must be one of"));
}

TEST_F(ConfigCommands, AnotherOptimizerDropsTheParametersOfTheDefaultOne) {
  for (const char* type : {"SGD", "Adagrad", "Lion", "Adam"}) {
    const ProgramEnd end = run_capstan({"plan", "--set", std::string("optimizer.type=") + type});
    EXPECT_EQ(end.exit_code, 0) << type << "\n" << end.text;
  }
  EXPECT_EQ(run_capstan({"plan", "--set", "scheduler.type=WarmupLR"}).exit_code, 0);
  // Parameters of the command line stay, whatever the order of its options.
  const ProgramEnd end = run_capstan({"plan", "--set", "optimizer.params.betas=1", "--set", "optimizer.type=SGD"});
  EXPECT_EQ(end.exit_code, 3);
  EXPECT_THAT(end.text, HasSubstr("command line: optimizer.params.betas: unknown key"));
}

TEST_F(ConfigCommands, StrictMakesErrorsOfOtherProgramsOptions) {
  const std::string path = file(R"({"train_batch_size": 8, "learning_rate": 1e-3})");
  const ProgramEnd usual = run_capstan({"validate", path});
  EXPECT_EQ(usual.exit_code, 0);
  EXPECT_THAT(usual.text, HasSubstr("warning: " + path +
                                    ":1:25: learning_rate: is an option of the transformers Trainer "
                                    "and has no effect in this file. What acts here: optimizer.params.lr for "
                                    "learning_rate."));
  const ProgramEnd strict = run_capstan({"validate", "--strict", path});
  EXPECT_EQ(strict.exit_code, 3);
  EXPECT_THAT(strict.text, HasSubstr("error: " + path + ":1:25: learning_rate: is an option of"));
  EXPECT_EQ(run_capstan({"validate", "--strict", "--lenient", path}).exit_code, 2);
}

TEST_F(ConfigCommands, ValidateSaysWhatTrainingAloneWouldWant) {
  const ProgramEnd end = run_capstan({"validate", file(R"({"train_batch_size": 8})")});
  EXPECT_EQ(end.exit_code, 0);
  EXPECT_THAT(end.text, HasSubstr("an optimizer must come from the program that trains; capstan train wants "
                                  "\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.001}} here, or "
                                  "--set optimizer.type=AdamW."));
}

TEST_F(ConfigCommands, ValidateTakesForGpusWhatItTakesForCpus) {
  setenv("CUDA_VISIBLE_DEVICES", "", 1);
  const std::string path = file(R"({"train_micro_batch_size_per_gpu": 8, "gradient_clipping": 1,
    "optimizer": {"type": "Lion", "params": {"lr": 1e-3}},
    "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}}})");
  const ProgramEnd open = run_capstan({"validate", path, "--world", "8"});
  EXPECT_EQ(open.exit_code, 0) << open.text;
  EXPECT_THAT(open.text, Not(HasSubstr("GPUs would refuse")));
  const ProgramEnd cuda = run_capstan({"validate", "--config", path, "--world", "8", "--device", "cuda"});
  EXPECT_EQ(cuda.exit_code, 0) << cuda.text;
  EXPECT_THAT(cuda.text, Not(HasSubstr("no effect")));
  unsetenv("CUDA_VISIBLE_DEVICES");
}

TEST_F(ConfigCommands, ValidateTellsThatTheTrackersPackageIsMissing) {
  const std::filesystem::path python = folder_ / "python3";
  std::ofstream(python) << "#!/bin/sh\nprintf '/opt/python3\\n\\n'\n";
  std::filesystem::permissions(python, std::filesystem::perms::owner_all);
  setenv("CAPSTAN_PYTHON", python.c_str(), 1);
  const std::string path = file(R"({"train_batch_size": 8, "gradient_clipping": 1, "wandb": {"enabled": true}})");
  const ProgramEnd stops = run_capstan({"validate", path});
  EXPECT_EQ(stops.exit_code, 0);
  EXPECT_THAT(stops.text,
              HasSubstr("notice: " + path +
                        ": wandb: the Python package 'wandb' is not installed for /opt/python3, so that training here "
                        "would end before its first step. To install it: /opt/python3 -m pip install "
                        "'wandb>=0.16.0'\n"));
  EXPECT_THAT(run_capstan({"validate", path, "--set", "capstan.run.on_monitor_failure=continue"}).text,
              HasSubstr("so that training here would go on without this monitor."));
  EXPECT_THAT(run_capstan({"validate", path, "--set", "wandb.enabled=false"}).text,
              Not(HasSubstr("wandb: the Python")));
  unsetenv("CAPSTAN_PYTHON");
}

TEST_F(ConfigCommands, ValidateNeedsAFileOrAKey) {
  const ProgramEnd end = run_capstan({"validate"});
  EXPECT_EQ(end.exit_code, 2);
  EXPECT_THAT(end.text, HasSubstr("validate needs a configuration file, or --explain and a key."));
}

TEST_F(ConfigCommands, ExplainSaysWhatAKeyMeans) {
  const ProgramEnd end = run_capstan({"validate", "--explain", "fp16.loss_scale"});
  EXPECT_EQ(end.exit_code, 0);
  EXPECT_THAT(end.text, HasSubstr("Fixed loss scale; 0 means dynamic scaling."));
  EXPECT_EQ(run_capstan({"validate", "--explain", "fp16.los_scale"}).exit_code, 3);
}

TEST_F(ConfigCommands, SchemaIsJson) {
  const ProgramEnd end = run_capstan({"schema"});
  EXPECT_EQ(end.exit_code, 0);
  const Json schema = Json::parse(end.text);
  EXPECT_NE(schema.at("properties").find("zero_optimization"), nullptr);
}

TEST_F(ConfigCommands, UpgradePrintsOrReplaces) {
  const std::string old = "{\n  // a device\n  \"train_step_batch_size\": 4\n}\n";
  const std::string fresh = "{\n  // a device\n  \"train_micro_batch_size_per_gpu\": 4\n}\n";
  const std::string path = file(old);
  EXPECT_THAT(run_capstan({"upgrade", path}).text, HasSubstr(fresh));
  EXPECT_EQ(text_of_file(), old);
  EXPECT_EQ(run_capstan({"upgrade", "--in-place", path}).exit_code, 0);
  EXPECT_EQ(text_of_file(), fresh);
}

TEST_F(ConfigCommands, UpgradeSaysWhatItLeft) {
  const std::string path = file("{\n  \"train_batch_size\": \"8\", // a note\n  \"fp16\": {\"enabeld\": True,}\n}\n");
  const ProgramEnd end = run_capstan({"upgrade", "--in-place", path});
  EXPECT_EQ(end.exit_code, 0);
  EXPECT_EQ(text_of_file(), "{\n  \"train_batch_size\": \"8\", // a note\n  \"fp16\": {\"enabeld\": true}\n}\n");
  for (const char* line :
       {": 1 comma before a closing bracket removed", ": 1 value spelt as in JSON: quotes, null, true, false"})
    EXPECT_THAT(end.text, HasSubstr(path + line));
  for (const char* line : {":2:28: comments are read here, but are not JSON.",
                           ":2:3: train_batch_size: the string \"8\" is read as 8; write it without quotes.",
                           ":3:12: fp16.enabeld: unknown key. Did you mean 'enabled'?"})
    EXPECT_THAT(end.text, HasSubstr("left as it is: " + path + line));
}

TEST_F(ConfigCommands, ElasticTellsThatABatchIsForOneNumberOfDevicesAlone) {
  const std::string path =
      file(R"({"gradient_clipping": 1, "elasticity": {"enabled": true, "max_train_batch_size": 2000,
    "micro_batch_sizes": [2, 4, 6], "num_gpus_per_node": 4, "model_parallel_size": 1, "version": 0.2}})");
  const std::string remark =
      "Version 0.2 counts whole nodes, and 6 devices do not fill nodes of 4 (num_gpus_per_node): this batch is for 6 "
      "devices alone, and other numbers train with another one. 'capstan launch --elastic' refuses such numbers.\n";
  const ProgramEnd odd = run_capstan({"elastic", path, "--world", "6"});
  EXPECT_EQ(odd.exit_code, 0);
  EXPECT_THAT(odd.text, HasSubstr("warning: elasticity: " + remark));
  EXPECT_THAT(odd.text, HasSubstr("fits data-parallel size 6\n"));
  EXPECT_THAT(run_capstan({"validate", path, "--world", "6"}).text,
              HasSubstr("which fits the data-parallel size 6. " + remark));
  EXPECT_THAT(run_capstan({"elastic", path, "--world", "8"}).text, Not(HasSubstr("whole nodes")));
}

TEST_F(ConfigCommands, ElasticPrintsTheBatchAndItsSizes) {
  const std::string path = file(R"({"elasticity": {"enabled": true, "max_train_batch_size": 4, "max_gpus": 4,
                                    "micro_batch_sizes": [1, 2, 3, 4], "version": 0.1}})");
  const ProgramEnd end = run_capstan({"elastic", path, "--world", "2"});
  EXPECT_EQ(end.exit_code, 0);
  EXPECT_EQ(end.text,
            "train_batch_size 4\nfits data-parallel sizes 1 2 4\n"
            "on 2: train_micro_batch_size_per_gpu 2, gradient_accumulation_steps 1\n");
  EXPECT_EQ(run_capstan({"elastic", "--config", path, "--world", "2"}).text, end.text);
  const ProgramEnd neither = run_capstan({"elastic"});
  EXPECT_EQ(neither.exit_code, 2);
  EXPECT_THAT(neither.text, HasSubstr("FILE is required: the configuration."));
  const std::string plain = file("{}");
  const ProgramEnd off = run_capstan({"elastic", plain});
  EXPECT_EQ(off.exit_code, 3);
  EXPECT_THAT(
      off.text,
      HasSubstr("elasticity.enabled: must be true for an elastic batch; the section is absent or off. An example "
                "of it: \"elasticity\": {\"enabled\": true, \"max_train_batch_size\": 512, "
                "\"micro_batch_sizes\": [2, 4, 8], \"version\": 0.1}; train_batch_size and its like are then "
                "left out."));
  const std::string example =
      R"({"elasticity": {"enabled": true, "max_train_batch_size": 512, "micro_batch_sizes": [2, 4, 8], "version": 0.1}})";
  EXPECT_EQ(run_capstan({"elastic", file(example)}).exit_code, 0);
}

TEST_F(ConfigCommands, NoticesHaveOneFormInEveryProgram) {
  const std::string path =
      file(R"({"train_batch_size": 8, "zero_optimization": {"stage": 1}, "gradient_clipping": 1})");
  const std::string notice = "notice: " + path + ":1:47: zero_optimization.stage: stage 1 with one process is stage 0";
  EXPECT_THAT(run_capstan({"validate", path, "--world", "1"}).text, HasSubstr("\n" + notice));
  EXPECT_THAT(run_capstan({"plan", "--config", path, "--model", "gpt:tiny", "--world", "1"}).text,
              HasSubstr("capstan: " + notice));
}

}  // namespace
}  // namespace capstan::test
