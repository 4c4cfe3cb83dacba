// `capstan train` on the emulated device, as "cuda" and as a stranger's device, beside the CPU: losses within the
// roundings of the type, no fault in memory or order, two waits of the host a step.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/text/json.hpp"
#include "tests/cli/elastic_run.hpp"
#include "tests/support/process.hpp"
#include "tests/support/temporary_folder.hpp"

namespace capstan::test {
namespace {

using ::testing::HasSubstr;

constexpr int kSteps = 3;
const std::string kEmulated = CAPSTAN_TEST_BUILD_DIR "/lib/capstan/emulated";

struct Setting {
  std::string name;
  std::vector<std::string> sets;  // key=value
  int processes = 1;
  double bound = 1e-6;  // of the difference of losses, which are about 5
  bool strangers_too = true;
};

struct Outcome {
  std::vector<double> losses;
  int exit_code = 0;
  std::string err;
};

class EmulatedTraining : public testing::TestWithParam<Setting> {
 protected:
  Outcome train(const std::string& device, int steps = kSteps) {
    const Setting& setting = GetParam();
    const std::string metrics = (folder_.path() / (device + std::to_string(steps))).string();
    std::vector<std::string> words{CAPSTAN_TEST_BUILD_DIR "/bin/capstan"};
    if (setting.processes > 1) words.insert(words.end(), {"launch", "-n", std::to_string(setting.processes)});
    const std::string config = (folder_.path() / "config.json").string();
    std::ofstream(config) << R"({"train_micro_batch_size_per_gpu": 2,
      "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
      "csv_monitor": {"enabled": true, "job_name": "run", "output_path": ")"
                          << metrics << "\"}}";
    words.insert(words.end(),
                 {"train", "--config", config, "--data", "/usr/share/common-licenses/GPL-3", "--model", "gpt:tiny",
                  "--steps", std::to_string(steps), "--seed", "3", "--device", device, "--plugin-path", kEmulated});
    for (const std::string& set : setting.sets) words.insert(words.end(), {"--set", set});
    setenv("CAPSTAN_EMULATED_STATS", "1", 1);
    const ProcessResult ended = run_process(words);
    Outcome outcome{{}, ended.exit_code, ended.err};
    std::ifstream file(metrics + "/run/Train_Samples_train_loss.csv");
    std::string line;
    std::getline(file, line);  // names of the columns
    while (std::getline(file, line)) outcome.losses.push_back(std::stod(line.substr(line.find(',') + 1)));
    return outcome;
  }

  /// A number of the line that the device prints at the end of each process: the most of all.
  static long count_of(const Outcome& outcome, const std::string& what) {
    const std::regex number("([0-9]+) " + what);
    long most = -1;
    std::istringstream lines(outcome.err);
    for (std::string line; std::getline(lines, line);) {
      std::smatch found;
      if (line.starts_with("emulated device: ") && std::regex_search(line, found, number)) {
        most = std::max(most, std::stol(found[1]));
      }
    }
    return most;
  }

  void expect_as_on_the_cpu(const std::string& device, const std::vector<double>& host) {
    SCOPED_TRACE(device);
    const Outcome there = train(device);
    ASSERT_EQ(there.exit_code, 0) << there.err;
    ASSERT_EQ(there.losses.size(), host.size());
    for (std::size_t i = 0; i < host.size(); ++i) EXPECT_NEAR(there.losses[i], host[i], GetParam().bound) << i;
    EXPECT_EQ(count_of(there, "faults"), 0) << there.err;
  }

  TemporaryFolder folder_;
};

TEST_P(EmulatedTraining, IsThatOfTheCpu) {
  const Outcome host = train("cpu");
  ASSERT_EQ(host.exit_code, 0) << host.err;
  ASSERT_EQ(host.losses.size(), static_cast<std::size_t>(kSteps));
  expect_as_on_the_cpu("cuda", host.losses);
  if (GetParam().strangers_too) expect_as_on_the_cpu("emulated", host.losses);
}

const Setting kSettings[] = {
    {"fp32", {}},
    {"bf16", {"bf16.enabled=true"}, 1, 5e-3},
    {"fp16_stage1", {"fp16.enabled=true", "zero_optimization.stage=1"}, 2, 5e-3},
    {"bf16_stage2_overlap",
     {"bf16.enabled=true", "zero_optimization.stage=2", "zero_optimization.overlap_comm=true",
      "gradient_accumulation_steps=2"},
     2,
     5e-3},
    {"bf16_masters_at_random_stage2",
     {"bf16.enabled=true", "bf16.bf16_master_weights_and_grads=true", "bf16.bf16_optimizer_states=true",
      "capstan.precision.stochastic_rounding=true", "zero_optimization.stage=2"},
     2,
     5e-3},
    {"fp16_masters_offloaded",
     {"fp16.enabled=true", "fp16.fp16_master_weights_and_grads=true", "zero_optimization.stage=3",
      R"(zero_optimization.offload_optimizer={"device": "cpu"})",
      R"(zero_optimization.offload_param={"device": "cpu"})", "zero_optimization.stage3_param_persistence_threshold=0"},
     1,
     5e-3},
    {"activation_checkpointing",
     {"activation_checkpointing.number_checkpoints=2", "activation_checkpointing.cpu_checkpointing=true"}},
    {"observers",
     {"flops_profiler.enabled=true", "flops_profiler.profile_step=1", "progressive_layer_drop.enabled=true",
      R"(capstan.observers=[{"type": "tensorboard_histograms"}])"}},
    // The device's kernel adds in another order than the CPU's. With the kernels of LibTorch for AVX2 a loss differs by
    // 1.43e-6, three units in the last place, with those for no vectors by none.
    {"sparse_attention", {"sparse_attention.mode=fixed"}, 1, 3e-6, false},
    {"lion", {"optimizer.type=Lion"}, 1, 1e-6, false},
    // Products of matrices by LibTorch, which adds in another order than the kernel for the CPU.
    {"muon_stage1", {"optimizer.type=Muon", "zero_optimization.stage=1"}, 2, 1e-6, false},
    {"adafactor", {"optimizer.type=Adafactor"}, 1, 1e-6, false},
    // By its kernel on one, in host memory on the other.
    {"lamb", {"optimizer.type=Lamb"}},
    {"offload_bf16_stage2_overlap",
     {"bf16.enabled=true", "zero_optimization.stage=2", "zero_optimization.overlap_comm=true",
      R"(zero_optimization.offload_optimizer={"device": "cpu"})"},
     2,
     5e-3},
    {"stage3", {"zero_optimization.stage=3", "zero_optimization.stage3_param_persistence_threshold=0"}, 2},
    {"stage3_parameters_in_host_memory",
     {"bf16.enabled=true", "zero_optimization.stage=3", R"(zero_optimization.offload_param={"device": "cpu"})",
      "zero_optimization.stage3_param_persistence_threshold=0"},
     1,
     5e-3},
    {"compression", {R"(compression_training={"weight_quantization": {
        "shared_parameters": {"enabled": true, "quantize_weight_in_forward": true},
        "different_groups": {"all": {"params": {"start_bits": 8, "target_bits": 8}, "modules": ["*"]}}}})"}},
    {"OneBitAdam", {"optimizer.type=OneBitAdam"}, 2, 1e-6, false},
};
INSTANTIATE_TEST_SUITE_P(Settings, EmulatedTraining, testing::ValuesIn(kSettings),
                         [](const auto& info) { return info.param.name; });

class EmulatedWaits : public EmulatedTraining {};

TEST_P(EmulatedWaits, AreTwoAStep) {
  const Outcome few = train("cuda", kSteps), more = train("cuda", 2 * kSteps);
  ASSERT_EQ(few.exit_code, 0) << few.err;
  ASSERT_EQ(more.exit_code, 0) << more.err;
  EXPECT_EQ(count_of(more, "host waits") - count_of(few, "host waits"), 2 * kSteps);
}

const Setting kWaitSettings[] = {
    {"fp32", {}},
    {"bf16", {"bf16.enabled=true"}},
    {"accumulation", {"gradient_accumulation_steps=2"}},
    {"progressive_layer_drop", {"progressive_layer_drop.enabled=true"}},
};
INSTANTIATE_TEST_SUITE_P(Settings, EmulatedWaits, testing::ValuesIn(kWaitSettings),
                         [](const auto& info) { return info.param.name; });

/// `capstan plan --device cuda` beside the most memory that the device has given.
class EmulatedPlan : public EmulatedTraining {
 protected:
  /// Bytes of the device: training's own, and the activations, least and most.
  std::pair<double, double> planned() {
    std::vector<std::string> words{CAPSTAN_TEST_BUILD_DIR "/bin/capstan",
                                   "plan",
                                   "--config",
                                   (folder_.path() / "config.json").string(),
                                   "--model",
                                   "gpt:tiny",
                                   "--world",
                                   std::to_string(GetParam().processes),
                                   "--device",
                                   "cuda",
                                   "--plugin-path",
                                   kEmulated,
                                   "--json"};
    for (const std::string& set : GetParam().sets) words.insert(words.end(), {"--set", set});
    const ProcessResult ended = run_process(words);
    EXPECT_EQ(ended.exit_code, 0) << ended.err;
    const Json plan = Json::parse(ended.out);
    const double own = plan.at("configured").at("memory").as_number();
    const Json& activations = plan.at("activations");
    return {own + activations.at("kept_bytes").as_number(), own + activations.at("peak_bytes").as_number()};
  }
};

TEST_P(EmulatedPlan, IsWhatTrainingTakes) {
  const Outcome there = train("cuda");
  ASSERT_EQ(there.exit_code, 0) << there.err;
  const auto measured = static_cast<double>(count_of(there, "B at the peak"));
  const auto [least, most] = planned();
  EXPECT_GT(measured, (1 - GetParam().bound) * least);
  EXPECT_LT(measured, (1 + GetParam().bound) * most);
}

const Setting kPlanSettings[] = {
    {"stage0", {}, 1, 0.05},
    {"bf16_stage1", {"bf16.enabled=true", "zero_optimization.stage=1"}, 2, 0.05},
    {"bf16_stage2", {"bf16.enabled=true", "zero_optimization.stage=2"}, 2, 0.05},
    {"offload",
     {"bf16.enabled=true", "zero_optimization.stage=2", R"(zero_optimization.offload_optimizer={"device": "cpu"})"},
     2,
     0.05},
    {"stage3", {"zero_optimization.stage=3"}, 2, 0.1},
};
INSTANTIATE_TEST_SUITE_P(Settings, EmulatedPlan, testing::ValuesIn(kPlanSettings),
                         [](const auto& info) { return info.param.name; });

/// Lamb has no kernel for this device. With states in host memory a step copies each gradient down and each parameter
/// up, and little else.
class EmulatedTraffic : public EmulatedTraining {};

TEST_P(EmulatedTraffic, IsGradientsDownAndParametersUp) {
  constexpr long kParameters = 875'264, kLittle = 20'000;  // of gpt:tiny; batches, losses, norms
  const long bytes = GetParam().name == "fp32" ? 4 : 2;    // of gradients and of what forward computes with
  const Outcome few = train("emulated", kSteps), more = train("emulated", 2 * kSteps);
  ASSERT_EQ(few.exit_code, 0) << few.err;
  ASSERT_EQ(more.exit_code, 0) << more.err;
  const auto a_step = [&](const std::string& what) { return (count_of(more, what) - count_of(few, what)) / kSteps; };
  EXPECT_NEAR(a_step("B to host"), bytes * kParameters, kLittle);
  EXPECT_NEAR(a_step("B to device"), bytes * kParameters, kLittle);
}

const Setting kTrafficSettings[] = {
    {"fp32", {"optimizer.type=Lamb"}},
    {"bf16", {"optimizer.type=Lamb", "bf16.enabled=true"}},
    {"bf16_masters", {"optimizer.type=Lamb", "bf16.enabled=true", "bf16.bf16_master_weights_and_grads=true"}},
};
INSTANTIATE_TEST_SUITE_P(Settings, EmulatedTraffic, testing::ValuesIn(kTrafficSettings),
                         [](const auto& info) { return info.param.name; });

/// The device takes a part of each parameter, one after the other: the model may be larger than its memory.
TEST(EmulatedMemory, IsEnoughForAModelThatIsLargerAtStage3) {
  const TemporaryFolder folder;
  const std::string config = (folder.path() / "config.json").string();
  std::ofstream(config) << R"({"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "SGD"},
    "zero_optimization": {"stage3_param_persistence_threshold": 0, "stage3_max_live_parameters": 200000,
                          "stage3_max_reuse_distance": 0, "stage3_prefetch_bucket_size": 0,
                          "reduce_bucket_size": 100000},
    "capstan": {"model": {"type": "gpt", "params": {"size": "tiny", "layers": 24}}, "data": {"sequence_length": 16}}})";
  setenv("CAPSTAN_EMULATED_MEMORY_MB", "17", 1);  // parameters take 18.5 MiB
  const auto train = [&](const char* stage) {
    return run_process({CAPSTAN_TEST_BUILD_DIR "/bin/capstan", "launch", "-n", "4", "train", "--config", config,
                        "--data", "/usr/share/common-licenses/GPL-3", "--steps", "2", "--device", "cuda",
                        "--plugin-path", kEmulated, "--set", std::string("zero_optimization.stage=") + stage});
  };
  const ProcessResult whole = train("2"), parts = train("3");
  unsetenv("CAPSTAN_EMULATED_MEMORY_MB");
  EXPECT_EQ(whole.exit_code, 1);
  EXPECT_THAT(whole.err, HasSubstr("out of memory: "));
  EXPECT_THAT(whole.err, HasSubstr("a higher zero_optimization.stage"));
  EXPECT_EQ(parts.exit_code, 0) << parts.err;
}

class EmulatedErrors : public EmulatedTraining {};

TEST_P(EmulatedErrors, NameTheReason) {
  const auto err_of = [this](const std::string& device) {
    const Outcome outcome = train(device, 1);
    EXPECT_EQ(outcome.exit_code, 3);
    return outcome.err;
  };
  EXPECT_THAT(err_of("emulator"), HasSubstr("capstan.run.device: no plugin provides an accelerator 'emulator'. Did you "
                                            "mean 'emulated' (capstan-emulated-emulated 0.1.0)?"));
}
const Setting kErrorSettings[] = {{"device", {}}};
INSTANTIATE_TEST_SUITE_P(Settings, EmulatedErrors, testing::ValuesIn(kErrorSettings),
                         [](const auto& info) { return info.param.name; });

/// Rank 0 waits for a link that has lost its other end, and must neither hang nor crash.
TEST(EmulatedLinks, EndWithASentenceWhereAProcessIsKilled) {
  const TemporaryFolder folder;
  const std::string config = (folder.path() / "config.json").string(), save = (folder.path() / "saved").string();
  std::ofstream(config) << R"({"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "AdamW"},
                               "zero_optimization": {"stage": 2, "overlap_comm": true}})";
  Process run({CAPSTAN_TEST_BUILD_DIR "/bin/capstan",
               "launch",
               "-n",
               "2",
               "train",
               "--config",
               config,
               "--data",
               "/usr/share/common-licenses/GPL-3",
               "--model",
               "gpt:tiny",
               "--steps",
               "1000000",
               "--device",
               "cuda",
               "--plugin-path",
               kEmulated,
               "--save",
               save,
               "--save-every",
               "2"});
  ASSERT_TRUE(run.wait_for_output("saved " + save + "/global_step4"));
  const auto ranks = cli::children_of(run.pid());
  ASSERT_EQ(ranks.size(), 2u);
  kill(ranks[1], SIGKILL);
  const ProcessResult ended = run.wait();
  EXPECT_EQ(ended.exit_code, 128 + SIGKILL);
  EXPECT_THAT(ended.err, HasSubstr("rank 1 was killed by SIGKILL"));
  EXPECT_THAT(ended.err, testing::Not(HasSubstr("terminate called"))) << ended.err;
  EXPECT_THAT(ended.err, testing::Not(HasSubstr("emulated device: race"))) << ended.err;
}

/// A program that has made another stream its current one, whose gradients are averaged by a thread of their own.
class EmulatedStreams : public testing::TestWithParam<std::tuple<const char*, int, const char*>> {};

TEST_P(EmulatedStreams, MayBeThoseOfAProgram) {
  const auto [name, processes, zero] = GetParam();
  const TemporaryFolder folder;
  const std::string config = (folder.path() / "config.json").string();
  std::ofstream(config) << R"({"train_micro_batch_size_per_gpu": 4, "optimizer": {"type": "AdamW"},
    "zero_optimization": {"overlap_comm": true, "reduce_bucket_size": 300, )"
                        << zero << R"(}, "capstan": {"run": {"device": "cuda"}}})";
  setenv("CAPSTAN_PLUGIN_PATH", kEmulated.c_str(), 1);
  setenv("CAPSTAN_EMULATED_STATS", "1", 1);
  std::string losses[2];
  for (const bool own : {false, true}) {
    std::vector<std::string> words{CAPSTAN_TEST_BUILD_DIR "/bin/capstan",
                                   "launch",
                                   "-n",
                                   std::to_string(processes),
                                   CAPSTAN_TEST_BUILD_DIR "/tests/emulated_own_stream",
                                   config};
    if (own) words.push_back("own");
    const ProcessResult ended = run_process(words);
    EXPECT_EQ(ended.exit_code, 0) << ended.err;
    EXPECT_THAT(ended.err, HasSubstr(", 0 faults")) << ended.err;
    EXPECT_THAT(ended.err, testing::Not(HasSubstr("race"))) << ended.err;
    losses[own] = ended.out;
  }
  EXPECT_EQ(losses[0], losses[1]);
  unsetenv("CAPSTAN_PLUGIN_PATH");
}

INSTANTIATE_TEST_SUITE_P(
    Settings, EmulatedStreams,
    testing::Values(std::tuple("stage2", 2, R"("stage": 2)"),
                    std::tuple("stage3", 2, R"("stage": 3, "stage3_param_persistence_threshold": 0)"),
                    std::tuple("offloaded_optimizer", 2, R"("stage": 2, "offload_optimizer": {"device": "cpu"})"),
                    std::tuple("offloaded_parameters", 1,
                               R"("stage": 3, "stage3_param_persistence_threshold": 0,
                                  "offload_param": {"device": "cpu"})")),
    [](const auto& info) { return std::get<0>(info.param); });

}  // namespace
}  // namespace capstan::test
