#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <memory>

#include "tests/core/data/temporary_folder.hpp"
#include "tests/parity/parity_run.hpp"
#include "tests/support/process.hpp"
#include "tests/support/ranks.hpp"

namespace capstan::parity {
namespace {

const std::string kFolder = std::string(CAPSTAN_TEST_SOURCE_DIR) + "/tests/parity";

Json recorded(const std::string& name) { return parse_recorded(test::read_bytes(kFolder + "/runs/" + name + ".json")); }

/// LibTorch multiplies 16-bit matrices ten times slower than fp32 ones where the processor has no instructions for
/// them. The first steps, with all overflows of the peer's fp16 runs, stand for the run; bench/parity repeats all of
/// it.
std::int64_t steps_of(const Json& run) {
  const Json* width = run.at("args").find("d");
  if (!is_16_bit(run) || (width && width->as_integer() <= 64)) return std::numeric_limits<std::int64_t>::max();
  return run.at("ds_config").find("fp16") ? 24 : 8;
}

/// How many of the steps that are compared have a value of that name.
std::int64_t recorded_values(const Json& run, const char* key, std::int64_t steps) {
  const Json* values = run.at("steps").find(key);
  if (values == nullptr) return 0;
  const auto& list = values->as_array();
  return std::count_if(list.begin(), list.begin() + steps, [](const Json& value) { return !value.is_null(); });
}

class Parity : public testing::TestWithParam<const char*> {};

TEST_P(Parity, RepeatsTheRecordedRunOfThePeer) {
  const Json run = recorded(GetParam());
  const Tolerance tolerance = tolerance_for(run);
  const Difference difference = repeat(run, kFolder + "/corpus.txt", {}, Communicator::alone(), steps_of(run));
  EXPECT_LE(difference.loss.greatest, tolerance.loss);
  EXPECT_LE(difference.grad_norm.greatest, tolerance.grad_norm);
  EXPECT_LE(difference.final_norm.greatest, tolerance.final_norm) << difference.final_norm_parameter;
  EXPECT_LE(difference.lr.greatest, tolerance.lr);
  EXPECT_LE(difference.momentum.greatest, tolerance.momentum);
  EXPECT_LE(difference.effective.greatest, tolerance.effective);
  EXPECT_LE(difference.masks.greatest, tolerance.masks);
  EXPECT_LE(difference.clean_loss.greatest, tolerance.clean_loss);
  EXPECT_LE(difference.eigenvalue.greatest, tolerance.eigenvalue);
  const Json& steps = run.at("steps");
  EXPECT_EQ(difference.effective.values > 0, steps.find("effective") || steps.find("weights"));
  EXPECT_EQ(difference.eigenvalue.values > 0, steps.find("raw_eigenvalue") != nullptr);
  EXPECT_EQ(difference.loss.values, difference.steps);
  EXPECT_EQ(difference.lr.values, recorded_values(run, "lr", difference.steps));
  EXPECT_EQ(difference.grad_norm.values, recorded_values(run, "grad_norm", difference.steps));
  EXPECT_EQ(difference.momentum.values, recorded_values(run, "mom", difference.steps));
}

// Runs that ParityOfProcesses repeats are not repeated here; bench/parity does both.
INSTANTIATE_TEST_SUITE_P(Runs, Parity,
                         testing::Values("base-z2", "gas2-z0", "noclip-z0", "opt-adagrad-z0", "sched-adamw-cosine-log",
                                         "sched-adamw-decay-linear", "sched-adamw-lrrange", "sched-adamw-none",
                                         "sched-adamw-onecycle", "sched-adamw-warmup-log", "sched-sgd-decay-linear",
                                         "sched-sgd-none", "world1-z0", "comp-base-gpt", "comp-base-conv", "wq-sym8",
                                         "wq-offset10", "wq-all-modules", "wq-asym4-g4", "wq-ternary", "wq-conv-8-6",
                                         "aq-dynamic-sym8", "aq-dynamic-sym4", "aq-static-asym8", "aq-conv-dynamic",
                                         "cl-linear-8-128", "cl-discrete-4", "de-value-48", "ltd-1of4", "ltd-2of4",
                                         "pld-0.5-0.05", "pld-0.9-0.5", "sparse-l1", "sparse-topk", "sparse-conv-l1",
                                         "row-off20", "row-topk", "row-l1-related", "row-l1-related-two", "head-topk",
                                         "head-topk-related", "channel-topk", "wq-aq-row", "layer-reduction",
                                         "moq-base-z2", "moq-8-4-p4-z2", "moq-12-8-p3-asym-g4-z2", "moq-mixed-z2",
                                         "moq-off10-z2", "moq-stochastic-z2", "eig-tiny-1", "eig-tiny-scale128"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace_if(
                               name.begin(), name.end(), [](char c) { return c == '-' || c == '.'; }, '_');
                           return name;
                         });

class ParityOfProcesses : public testing::TestWithParam<const char*> {};

TEST_P(ParityOfProcesses, RepeatsTheRecordedRunInAsManyProcesses) {
  const Json run = recorded(GetParam());
  const int ranks = static_cast<int>(run.at("world").as_integer());
  const test::RankEnvironments environments(ranks);
  std::vector<std::unique_ptr<Process>> processes;
  for (int rank = 0; rank < ranks; ++rank) {
    processes.push_back(std::make_unique<Process>(
        std::vector<std::string>{CAPSTAN_TEST_BUILD_DIR "/tests/parity_check",
                                 kFolder + "/runs/" + GetParam() + ".json", "--data", kFolder + "/corpus.txt",
                                 "--steps", std::to_string(steps_of(run))},
        ProcessOptions{.environment = environments.of(rank)}));
  }
  for (const auto& process : processes) {
    const ProcessResult result = process->wait();
    EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  }
}

INSTANTIATE_TEST_SUITE_P(Runs, ParityOfProcesses,
                         testing::Values("base-z0", "base-z1", "base-z3", "bf16-z1", "bf16-z3", "gas2-z2",
                                         "prescale-z0", "fp16dyn-z1", "fp16dyn-z3"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

/// The comparison is worth something only if small mistakes show.
class ParityNotices : public testing::TestWithParam<std::pair<const char*, double>> {};

TEST_P(ParityNotices, AChangedNumberOfTheOptimizer) {
  const Json run = recorded("world1-z0");
  const auto [key, value] = GetParam();
  const Difference difference = repeat(run, kFolder + "/corpus.txt", {{key, Json(value)}});
  EXPECT_FALSE(difference.within(tolerance_for(run)));
}

INSTANTIATE_TEST_SUITE_P(Mistakes, ParityNotices,
                         testing::Values(std::pair("optimizer.params.weight_decay", 0.09),
                                         std::pair("optimizer.params.eps", 1e-7)));

/// Repeats a recorded run of AdamW with another optimizer of the folder parity_plugins.
Difference repeat_with(const Json& run, const char* optimizer) {
  const Json folders(Json::Array{Json(CAPSTAN_TEST_BUILD_DIR "/tests/parity_plugins")});
  return repeat(run, kFolder + "/corpus.txt", {{"capstan.plugins.path", folders}, {"optimizer.type", Json(optimizer)}});
}

class ParityNoticesOf : public testing::TestWithParam<const char*> {};

TEST_P(ParityNoticesOf, AnUpdateWithOneMistake) {
  const Json run = recorded("world1-z0");
  const Difference difference = repeat_with(run, GetParam());
  EXPECT_FALSE(difference.within(tolerance_for(run))) << report(difference, tolerance_for(run)).dump();
}

INSTANTIATE_TEST_SUITE_P(Mistakes, ParityNoticesOf, testing::Values("AdamWEpsInsideRoot", "AdamWDecayAfterUpdate"));

TEST(ParityAccepts, AnotherImplementationWithoutAMistake) {
  const Json run = recorded("world1-z0");
  const Difference difference = repeat_with(run, "AdamWAsPublished");
  EXPECT_TRUE(difference.within(tolerance_for(run))) << report(difference, tolerance_for(run)).dump();
}

TEST(ParityReport, TellsWhatWasNotRecordedFromWhatIsEqual) {
  Difference difference;
  difference.loss.add(0);
  difference.loss.add(1e-6);
  difference.lr.add(0);
  const Json line = report(difference, {});
  EXPECT_EQ(line.at("loss").at("difference"), Json(1e-6));
  EXPECT_EQ(line.at("loss").at("values"), Json(2));
  EXPECT_EQ(line.at("lr").at("difference"), Json(0.0));
  EXPECT_EQ(line.at("lr").at("values"), Json(1));
  EXPECT_TRUE(line.at("grad_norm").at("difference").is_null());
  EXPECT_EQ(line.at("grad_norm").at("values"), Json(0));
  EXPECT_EQ(line.at("pass"), Json(true));
}

Json with(Json run, const char* section, const char* text) {
  run["ds_config"][section] = Json::parse(text);
  return run;
}

TEST(ParityReport, AllowsAnAutocastRunWhatItAllowsA16BitRun) {
  const Json run = with(recorded("base-z1"), "torch_autocast", R"({"enabled": true, "dtype": "bfloat16"})");
  const Tolerance narrow = tolerance_for(run), bf16 = tolerance_for(recorded("bf16-z1"));
  EXPECT_EQ(narrow.loss, bf16.loss);
  EXPECT_EQ(narrow.grad_norm, bf16.grad_norm);
  EXPECT_EQ(narrow.final_norm, bf16.final_norm);
}

TEST(ParityReport, AllowsWeightsOfA16BitRunWhatItAllowsItsLosses) {
  const Json run = with(recorded("wq-sym8"), "bf16", R"({"enabled": true})");
  EXPECT_EQ(tolerance_for(run).effective, tolerance_for(run).loss);
  EXPECT_EQ(tolerance_for(recorded("wq-sym8")).effective, 1e-4);
}

TEST(ParityReport, TakesTheLossAfterCleaningOnTheSamplesOfTheRecorder) {
  Json run = recorded("wq-sym8");  // 40 steps of 4 samples
  EXPECT_EQ(clean_sample(run), 160);
  run["ds_config"]["gradient_accumulation_steps"] = std::int64_t{2};
  EXPECT_EQ(clean_sample(run), 160);
}

/// The final values of such runs are the float16 weights of the last recorded step, from which masters differ by what
/// rounding to 4 bits takes away.
TEST(ParityReport, ComparesWeightsThatAreRoundedInTheUpdateAsTheyAreRounded) {
  Json run = recorded("moq-8-4-p4-z2");
  const Json& weights = run.at("steps").at("weights");
  for (auto& [name, values] : run["final"].as_object()) {
    const Json* steps = weights.find(name);
    if (steps == nullptr) {
      values = Json();  // biases and norms, of which float16 keeps less
      continue;
    }
    EXPECT_NEAR(values.as_array()[1].as_number() / steps->as_array().back().as_array()[1].as_number(), 1, 1e-9);
  }
  const Difference difference = repeat(run, kFolder + "/corpus.txt", {});
  EXPECT_EQ(difference.final_norm.values, static_cast<std::int64_t>(weights.size()));
  // A processor that multiplies float16 itself (AVX512-FP16) rounds products otherwise, so that a weight between two of
  // the 16 values takes the other one: 1.6e-3 was seen there.
  EXPECT_LE(difference.final_norm.greatest, 3e-3) << difference.final_norm_parameter;
}

TEST(ParityReport, NamesTheDepartureThatARunCannotBeComparedFor) {
  EXPECT_EQ(departure_of(recorded("base-z0")), "");
  EXPECT_EQ(departure_of(recorded("fp16dyn-z1")), "");
  const Json run = with(recorded("fp16dyn-z1"), "zero_optimization", R"({"stage": 0})");
  EXPECT_THAT(departure_of(run), testing::HasSubstr("fp16 at stage 0: the peer divides gradients by a loss scale that "
                                                    "it has not multiplied the loss by"));
  Json below = recorded("ltd-2of4");
  below["ds_config"]["data_efficiency"]["data_routing"]["random_ltd"]["random_ltd_schedule"]["min_value"] = 20;
  EXPECT_THAT(departure_of(below),
              testing::HasSubstr("random-LTD: the peer keeps fewer tokens than min_value, which is "
                                 "no multiple of seq_per_step"));
  const test::TemporaryFolder folder;
  const std::string file = folder.write("run.json", run.dump());
  const ProcessResult result =
      run_process({CAPSTAN_TEST_BUILD_DIR "/tests/parity_check", file, "--data", kFolder + "/corpus.txt"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, testing::HasSubstr(file + ": not comparable: fp16 at stage 0"));
}

}  // namespace
}  // namespace capstan::parity
