#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "tests/core/data/temporary_folder.hpp"
#include "tests/parity/parity_run.hpp"
#include "tests/support/process.hpp"
#include "tests/support/ranks.hpp"

namespace capstan::parity {
namespace {

const std::string kFolder = std::string(CAPSTAN_TEST_SOURCE_DIR) + "/tests/parity";

Json recorded(const std::string& name) { return Json::parse(test::read_bytes(kFolder + "/runs/" + name + ".json")); }

class Parity : public testing::TestWithParam<const char*> {};

TEST_P(Parity, RepeatsTheRecordedRunOfThePeer) {
  const Json run = recorded(GetParam());
  const Tolerance tolerance = tolerance_for(run);
  const Difference difference = repeat(run, kFolder + "/corpus.txt");
  EXPECT_LE(difference.loss, tolerance.loss);
  EXPECT_LE(difference.grad_norm, tolerance.grad_norm);
  EXPECT_LE(difference.final_norm, tolerance.final_norm) << difference.final_norm_parameter;
  EXPECT_LE(difference.lr, tolerance.lr);
  EXPECT_LE(difference.momentum, tolerance.momentum);
}

INSTANTIATE_TEST_SUITE_P(Runs, Parity,
                         testing::Values("base-z0", "base-z1", "base-z2", "base-z3", "bf16-z1", "bf16-z3", "gas2-z0",
                                         "gas2-z2", "noclip-z0", "opt-adagrad-z0", "prescale-z0",
                                         "sched-adamw-cosine-log", "sched-adamw-decay-linear", "sched-adamw-lrrange",
                                         "sched-adamw-none", "sched-adamw-onecycle", "sched-adamw-warmup-log",
                                         "sched-sgd-decay-linear", "sched-sgd-none", "world1-z0"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

class ParityOfProcesses : public testing::TestWithParam<const char*> {};

TEST_P(ParityOfProcesses, RepeatsTheRecordedRunInAsManyProcesses) {
  const int ranks = static_cast<int>(recorded(GetParam()).at("world").as_integer());
  const test::RankEnvironments environments(ranks);
  std::vector<std::unique_ptr<Process>> processes;
  for (int rank = 0; rank < ranks; ++rank) {
    processes.push_back(std::make_unique<Process>(
        std::vector<std::string>{CAPSTAN_TEST_BUILD_DIR "/tests/parity_check",
                                 kFolder + "/runs/" + GetParam() + ".json", "--data", kFolder + "/corpus.txt"},
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

}  // namespace
}  // namespace capstan::parity
