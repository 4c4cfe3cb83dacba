// The 1-bit optimizers as GPUs have them, the GPU's rules applied to host memory, beside the CPU's.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/plugins/optimizers/onebit_ranks.hpp"

namespace capstan::testing {
namespace {

struct Type {
  const char *plugin, *type, *params;
};

class RuleOptimizers : public ::testing::TestWithParam<Type> {};

std::string rules_of(const Type& type) {
  return CAPSTAN_TEST_BUILD_DIR "/tests/plugins/libcapstan_optimizer_" + std::string(type.plugin) + "_rules.so";
}

TEST_P(RuleOptimizers, TrainAsTheCpuDoesInGroupsOfAnySize) {
  const Type& type = GetParam();
  constexpr int kUpdates = 50;
  for (const std::uint32_t ranks : {1u, 2u, 3u}) {
    Problem problem = noisy_problem(ranks, {37, 5, 64, 20'011}, 4);
    problem.clip = 100;
    std::vector<std::vector<float>> expected(ranks);
    run_ranks(problem, type.plugin, type.type, type.params, kUpdates,
              [&](RankOfProblem& rank, std::uint32_t at, int t) {
                if (t == kUpdates) expected[at] = rank.bits();
              });
    run_ranks(problem, rules_of(type), type.type, type.params, kUpdates,
              [&](RankOfProblem& rank, std::uint32_t at, int t) {
                if (t < kUpdates) return;
                const std::vector<float> got = rank.bits();
                ASSERT_EQ(got.size(), expected[at].size());
                for (std::size_t i = 0; i < got.size(); ++i) {
                  ASSERT_NEAR(got[i], expected[at][i], 1e-5 * (1 + std::abs(expected[at][i])))
                      << "rank " << at << " of " << ranks << ", element " << i;
                }
              });
  }
}

INSTANTIATE_TEST_SUITE_P(
    Types, RuleOptimizers,
    ::testing::Values(
        Type{"onebit_adam", "OneBitAdam", R"({"freeze_step": 15, "weight_decay": 0.01})"},
        Type{"onebit_lamb", "OneBitLamb", R"({"freeze_step": 15, "weight_decay": 0.01})"},
        Type{"zero_one_adam", "ZeroOneAdam",
             R"({"var_freeze_step": 20, "var_update_scaler": 3, "weight_decay": 0.01, "local_step_scaler": 4,
                 "local_step_clipper": 4})"}),
    [](const auto& instance) { return std::string(instance.param.type); });

}  // namespace
}  // namespace capstan::testing
