// Optimizers that look at whole matrices, or at sums over the whole model, in one process and in several.
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/engine/planned_run.hpp"
#include "tests/core/zero/mixed_model.hpp"
#include "tests/support/ranks.hpp"

namespace capstan {
namespace {

using test::MixedRun;

constexpr std::int64_t kLargest = 100;  // the model's largest parameter has 40,100 elements
constexpr const char* kMuon = R"({"type": "Muon", "params": {"lr": 0.02, "adam_lr": 0.01, "adamw_names": ["twice"]}})";
constexpr const char* kGram = R"({"type": "Muon", "params": {"lr": 0.02, "ns_method": "gram"}})";
constexpr const char* kAdafactor = R"({"type": "Adafactor", "params": {"lr": 0.05, "weight_decay": 0.1}})";
constexpr const char* kProdigy = R"({"type": "Prodigy", "params": {"weight_decay": 0.1, "use_bias_correction": true}})";

/// A step of 12 rows in two micro-batches: of two processes one each, or both of a single one.
std::string config_of(int ranks, const std::string& optimizer, const std::string& zero) {
  return R"({"train_batch_size": 12, "gradient_accumulation_steps": )" + std::to_string(2 / ranks) +
         R"(, "steps_per_print": null, "gradient_clipping": 0, "optimizer": )" + optimizer +
         R"(, "zero_optimization": )" + zero + "}";
}

const char* const kZeros[] = {R"({"stage": 0})", R"({"stage": 1, "reduce_bucket_size": 3000, "sub_group_size": 500})",
                              R"({"stage": 2, "overlap_comm": true})",
                              R"({"stage": 3, "stage3_param_persistence_threshold": 0})"};

std::shared_ptr<Communicator> shared(Communicator& communicator) {
  return {&communicator, [](Communicator*) {}};
}

/// A run whose model uses the same parameters in every step: at stage 3 the ranks must agree on them.
struct SteadyRun : MixedRun {
  SteadyRun(int ranks, const std::string& optimizer, const std::string& zero,
            std::shared_ptr<Communicator> communicator)
      : MixedRun(config_of(ranks, optimizer, zero), std::move(communicator), 1, kLargest) {
    model.skips = false;
  }
};

class WholeOptimizer : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { setenv("CAPSTAN_PLUGIN_PATH", CAPSTAN_TEST_BUILD_DIR "/tests/state_plugins", 1); }
};

TEST_P(WholeOptimizer, HasTheBitsOfOneProcessAtEveryStage) {
  SteadyRun one(1, GetParam(), kZeros[0], Communicator::alone());
  const at::Tensor start = one.values();
  one.steps(6);
  const at::Tensor expected = one.values();
  EXPECT_FALSE(at::equal(expected, start));
  test::expect_on_ranks(2, [&](Communicator& communicator) {
    for (const char* zero : kZeros) {
      SteadyRun run(2, GetParam(), zero, shared(communicator));
      run.steps(6);
      EXPECT_TRUE(at::equal(run.values(), expected)) << zero;
    }
  });
}

TEST_P(WholeOptimizer, GoesOnInOneProcessAndBackInTwoAsIfNothingHadHappened) {
  SteadyRun straight(1, GetParam(), kZeros[0], Communicator::alone());
  straight.steps(9);
  const at::Tensor expected = straight.values();
  test::expect_on_ranks(2, [&](Communicator& communicator) {
    const std::string folder = communicator.all_gather_text(
        "folder", (std::filesystem::temp_directory_path() / ("whole" + std::to_string(getpid()))).string())[0];
    SteadyRun two(2, GetParam(), kZeros[3], shared(communicator));
    two.steps(3);
    two.engine.save_checkpoint(folder);
    if (communicator.rank() == 0) {
      SteadyRun one(1, GetParam(), kZeros[0], Communicator::alone());
      one.engine.load_checkpoint(folder);
      one.steps(3);
      one.engine.save_checkpoint(folder);
    }
    communicator.all_gather_text("saved", "");
    SteadyRun again(2, GetParam(), kZeros[2], shared(communicator));
    again.engine.load_checkpoint(folder);
    again.steps(3);
    EXPECT_TRUE(at::equal(again.values(), expected));
    communicator.all_gather_text("read", "");
    if (communicator.rank() == 0) std::filesystem::remove_all(folder);
  });
}

TEST_P(WholeOptimizer, HasTheSameBitsWithItsStatesOffloaded) {
  SteadyRun straight(1, GetParam(), kZeros[0], Communicator::alone());
  straight.steps(4);
  const at::Tensor expected = straight.values();
  test::expect_on_ranks(2, [&](Communicator& communicator) {
    SteadyRun run(2, GetParam(), R"({"stage": 2, "offload_optimizer": {"device": "cpu"}})", shared(communicator));
    run.steps(4);
    EXPECT_TRUE(at::equal(run.values(), expected));
  });
}

std::string name_of(const testing::TestParamInfo<const char*>& info) {
  const std::string names[] = {"Muon", "MuonOnGram", "Adafactor", "Prodigy"};
  return names[info.index];
}

/// Three updates of a model whose parameters lie in a module of that class, or in none.
at::Tensor after_muon(const std::string& params, const char* class_name) {
  std::vector<ModuleRecord> modules;
  if (class_name != nullptr) modules.push_back({"", class_name});
  MixedRun run(config_of(1, R"({"type": "Muon", "params": {"lr": 0.02)" + params + "}}", kZeros[0]),
               Communicator::alone(), 1, kLargest, modules);
  run.steps(3);
  return run.values();
}

TEST(Muon, LeavesEmbeddingsToAdamWByTheirRole) {
  const at::Tensor embeddings = after_muon("", "torch.nn.Embedding");
  EXPECT_TRUE(at::equal(embeddings, after_muon(R"(, "adamw_names": ["."])", nullptr)));
  EXPECT_FALSE(at::equal(embeddings, after_muon("", nullptr)));
}

INSTANTIATE_TEST_SUITE_P(Types, WholeOptimizer, testing::Values(kMuon, kGram, kAdafactor, kProdigy), name_of);

PlannedRun planned(const char* optimizer) {
  SteadyRun run(1, optimizer, kZeros[0], Communicator::alone());
  return planned_run(Model(
                         &test::MixedModel::table(), &run.model, [](void*) {}, "mixed"),
                     run.engine.config(), run.plugins, 1);
}

TEST(Adafactor, IsPlannedWithAValueARowAndAColumn) {
  for (const PlannedParameter& parameter : planned(kAdafactor).parameters) {
    if (!parameter.trainable) continue;
    const bool matrix = parameter.shape.size() == 2 && parameter.numel > 0;
    const std::int64_t values = matrix ? parameter.shape[0] + parameter.shape[1] : parameter.numel;
    EXPECT_EQ(parameter.bytes_of_states(parameter.numel), 4 * values + 8);  // and a counter
    if (matrix) {
      EXPECT_EQ(parameter.bytes_of_states(0), 8);  // a rank without it
    }
  }
}

TEST(Muon, IsPlannedWithOneStateForMatricesAndTwoForAllOthers) {
  int matrices = 0;
  for (const PlannedParameter& parameter : planned(kMuon).parameters) {
    if (!parameter.trainable) continue;
    const bool named = parameter.shape.size() == 2 && parameter.shape[0] == 3;  // "twice"
    const bool matrix = parameter.shape.size() == 2 && !named;
    matrices += matrix;
    EXPECT_EQ(parameter.bytes_of_states(parameter.numel), (matrix ? 4 : 8) * parameter.numel + 8);
  }
  EXPECT_EQ(matrices, 3);
}

}  // namespace
}  // namespace capstan
