// Whatever happens to a run, what is kept on stores goes on as in memory.

#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <ostream>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/errors.hpp"
#include "tests/core/data/temporary_folder.hpp"
#include "tests/core/zero/mixed_model.hpp"
#include "tests/support/ranks.hpp"

namespace capstan {
namespace {

using test::MixedRun;
using test::TemporaryFolder;

constexpr std::int64_t kLargest = 12'000;  // elements of the largest parameter
constexpr const char* kMemory = R"("zero_optimization": {"stage": 0})";
constexpr const char* kStates = R"("zero_optimization": {"stage": 1, "sub_group_size": 5000},
  "capstan": {"offload": {"optimizer": {"type": "cpu"}}})";
constexpr const char* kParameters = R"("zero_optimization": {"stage": 3, "sub_group_size": 5000,
  "stage3_param_persistence_threshold": 100}, "capstan": {"offload": {"parameters": {"type": "cpu"}}})";
constexpr const char* kBoth = R"("zero_optimization": {"stage": 3, "sub_group_size": 5000,
  "stage3_param_persistence_threshold": 100},
  "capstan": {"offload": {"optimizer": {"type": "cpu"}, "parameters": {"type": "cpu"}}})";

std::string config_of(const std::string& kept, const std::string& precision, const std::string& optimizer = "AdamW",
                      int ranks = 1) {
  return R"({"train_micro_batch_size_per_gpu": )" + std::to_string(12 / ranks) + R"(, "steps_per_print": null, )" +
         R"("optimizer": {"type": ")" + optimizer + R"(", "params": {"lr": 0.01}}, )" + precision + kept + "}";
}

struct Case {
  const char* name;
  const char* kept;
  const char* precision;
};

std::ostream& operator<<(std::ostream& out, const Case& one) { return out << one.name; }

class Offload : public testing::TestWithParam<Case> {
 protected:
  MixedRun run(const std::string& kept) const {
    return MixedRun(config_of(kept, GetParam().precision), Communicator::alone(), 1, kLargest);
  }
};

void write_large(MixedRun& run) {
  const at::NoGradGuard no_grad;
  GatherScope held = run.engine.gather({"large"}, 0);
  for (const NamedTensor& parameter : run.engine.model().parameters()) {
    if (parameter.name == "large") at::Tensor(parameter.tensor).fill_(0.25);
  }
  held.close();
}

TEST_P(Offload, TakesWhatIsWrittenToGatheredParameters) {
  MixedRun memory = run(kMemory), stored = run(GetParam().kept);
  for (MixedRun* one : {&memory, &stored}) {
    one->steps(2);
    write_large(*one);
  }
  EXPECT_TRUE(at::equal(stored.values(), memory.values()));
  EXPECT_EQ(stored.steps(2), memory.steps(2));
}

TEST_P(Offload, GoesOnFromACheckpointAfterAnExceptionOutOfBackward) {
  const TemporaryFolder folder;
  MixedRun memory = run(kMemory), stored = run(GetParam().kept);
  memory.steps(2);
  stored.steps(2);
  stored.engine.save_checkpoint(folder.path().string(), "two");
  const std::vector<double> expected = memory.steps(2);
  EXPECT_EQ(stored.steps(2), expected);

  stored.model.in_backward = [] { throw std::runtime_error("enough"); };
  EXPECT_ANY_THROW(stored.step());
  stored.model.in_backward = nullptr;
  EXPECT_THROW(stored.step(), RuntimeFault);
  for (int twice = 0; twice < 2; ++twice) {
    stored.engine.load_checkpoint(folder.path().string(), "two");
    EXPECT_EQ(stored.steps(2), expected) << "load " << twice;
  }
}

TEST_P(Offload, LoadsWhatWasSavedFromMemoryAndBack) {
  const TemporaryFolder folder;
  const std::string dir = folder.path().string();
  MixedRun memory = run(kMemory), stored = run(GetParam().kept);
  memory.steps(2);
  memory.engine.save_checkpoint(dir, "memory");
  const std::vector<double> expected = memory.steps(2);
  stored.steps(1);
  stored.engine.load_checkpoint(dir, "memory");
  stored.engine.save_checkpoint(dir, "stored");
  EXPECT_EQ(stored.steps(2), expected);
  memory.engine.load_checkpoint(dir, "stored");
  EXPECT_EQ(memory.steps(2), expected);
}

TEST_P(Offload, GoesOnAfterAForwardThatFailedAndEvaluatesTheSame) {
  MixedRun memory = run(kMemory), stored = run(GetParam().kept);
  std::vector<double> losses[2];
  for (MixedRun* one : {&memory, &stored}) {
    one->steps(1);
    one->model.fails = true;
    EXPECT_ANY_THROW(one->step());
    one->model.fails = false;
    std::vector<double>& seen = losses[one == &stored];
    for (int i = 0; i < 2; ++i) {
      seen.push_back(one->engine.eval_batch([] { return test::rows_of_stream(500, 12); }, 2));
      seen.push_back(one->step());
    }
  }
  EXPECT_EQ(losses[1], losses[0]);
}

constexpr const char* kBf16 = R"("bf16": {"enabled": true}, )";
INSTANTIATE_TEST_SUITE_P(All, Offload,
                         testing::Values(Case{"states_fp32", kStates, ""}, Case{"parameters_bf16", kParameters, kBf16},
                                         Case{"both_fp32", kBoth, ""}, Case{"both_bf16", kBoth, kBf16}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(OffloadedGradients, OfASkippedStepDoNotReachTheNext) {
  for (const char* kept : {kStates, kParameters, kBoth}) {
    std::vector<double> losses[2];
    for (const bool stored : {false, true}) {
      MixedRun run(config_of(stored ? kept : kMemory, R"("fp16": {"enabled": true, "initial_scale_power": 8}, )"),
                   Communicator::alone(), 1, kLargest);
      for (const double factor : {1.0, 1e30, 1.0, 1e30, 1.0}) {
        run.model.loss_factor = factor;
        losses[stored].push_back(run.step());
      }
      EXPECT_EQ(run.engine.progress().skipped_steps, 2);
      losses[stored].push_back(run.step());
    }
    EXPECT_EQ(losses[1], losses[0]) << kept;
  }
}

TEST(OffloadedStates, ThatBeginAsTheParametersDoSoOnAStore) {
  for (const char* kept : {kStates, kParameters, kBoth}) {
    for (const char* precision : {"", kBf16}) {
      MixedRun memory(config_of(kMemory, precision, "ASGD"), Communicator::alone(), 1, kLargest);
      MixedRun stored(config_of(kept, precision, "ASGD"), Communicator::alone(), 1, kLargest);
      EXPECT_EQ(stored.steps(3), memory.steps(3)) << kept << precision;
    }
  }
}

// What an optimizer measures of a sub-group is added up over ranks: these must mean the same sub-groups.
TEST(SubGroups, OfAnySizeMeasureTheSameOnAllRanks) {
  test::expect_on_ranks(2, [](Communicator& communicator) {
    const std::shared_ptr<Communicator> ranks(&communicator, [](Communicator*) {});
    for (const char* stage : {"1", "2", "3"}) {
      const auto losses = [&](const std::string& size) {
        const std::string zero = std::string(R"("zero_optimization": {"stage": )") + stage +
                                 R"(, "stage3_param_persistence_threshold": 100, "sub_group_size": )" + size + "}";
        MixedRun run(config_of(zero, "", "Lamb", 2), ranks, 1, kLargest);
        run.model.skips = false;
        return run.steps(3);
      };
      const std::vector<double> whole = losses("1000000000");
      EXPECT_EQ(losses("60"), whole) << stage;
      EXPECT_EQ(losses("5000"), whole) << stage;
    }
  });
}

}  // namespace
}  // namespace capstan
