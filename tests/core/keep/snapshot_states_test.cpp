// Snapshots hold whatever a training remembers: a run that goes on from one is the run that nobody has disturbed.

#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/elastic/snapshot_folder.hpp"
#include "core/registry/plugin_index.hpp"
#include "tests/core/keep/snapshot_worlds.hpp"
#include "tests/plugins/compression/quantized_net.hpp"

namespace capstan {
namespace {

using test::in_worlds;
using test::shared;
using test::TogetherRun;
using ::testing::HasSubstr;
using testing::NetRun;  // of ours, as net_config()

constexpr int kBefore = 4, kAfter = 3;  // steps, around the snapshot

/// What a run is at a moment, as the next steps will show.
struct Course {
  std::vector<double> losses;
  at::Tensor values;
};

template <typename Run>
Course go_on(Run& run) {
  return {run.steps(kAfter), run.values().clone()};
}

void expect_same(const Course& found, const Course& wanted, const std::string& what) {
  EXPECT_EQ(found.losses, wanted.losses) << what;
  EXPECT_TRUE(at::equal(found.values, wanted.values)) << what;
}

/// A run that snapshots are made of trains as one without; from the newest another one goes on as it does, of other
/// values before. `make`: a run on these ranks; its values may follow from a seed. Gives the values at the snapshot.
template <typename Make>
at::Tensor expect_goes_on(const Make& make, const std::shared_ptr<Communicator>& ranks, const std::string& folder,
                          const std::string& what) {
  Course wanted, beside;
  std::vector<double> before;
  at::Tensor at_snapshot;
  {
    auto plain = make(ranks, 1);
    before = plain->steps(kBefore);
    at_snapshot = plain->values().clone();
    wanted = go_on(*plain);
  }
  {
    SnapshotFolder snapshots(folder, ranks->rank(), 1);
    auto run = make(ranks, 1);
    EXPECT_EQ(run->steps(kBefore), before) << what;
    run->engine.begin_snapshot(snapshots);
    beside = go_on(*run);
    EXPECT_TRUE(run->engine.finish_snapshot()) << what;
  }
  expect_same(beside, wanted, what + ", beside a snapshot");
  SnapshotFolder snapshots(folder, 10 + ranks->rank(), 2);
  auto loaded = make(ranks, 2);
  loaded->steps(1);
  if (!loaded->engine.load_snapshot(snapshots)) {
    ADD_FAILURE() << what << ": nothing was loaded";
    return at_snapshot;
  }
  EXPECT_EQ(loaded->engine.progress().global_steps, kBefore) << what;
  EXPECT_TRUE(at::equal(loaded->values(), at_snapshot)) << what;
  expect_same(go_on(*loaded), wanted, what + ", loaded");
  return at_snapshot;
}

/// One process alone goes on from what two have left.
template <typename Make>
void expect_goes_on_alone(const Make& make, const std::string& folder, const at::Tensor& at_snapshot,
                          const std::string& what) {
  SnapshotFolder snapshots(folder, 20, 3);
  auto alone = make(Communicator::alone(), 2);
  ASSERT_TRUE(alone->engine.load_snapshot(snapshots)) << what;
  EXPECT_EQ(alone->engine.progress().global_steps, kBefore) << what;
  EXPECT_TRUE(at::equal(alone->values(), at_snapshot)) << what;
  EXPECT_TRUE(std::isfinite(alone->step())) << what;
}

/// All that is told while `run` runs.
template <typename Run>
std::string told_by(const Run& run) {
  ::testing::internal::CaptureStderr();
  run();
  return ::testing::internal::GetCapturedStderr();
}

struct Training {
  std::string name, zero, optimizer, more;
  bool same_alone = true;  // one process computes with the values that two do
};

auto mixed(const Training& given, const std::string& folder) {
  // Another seed is another model.
  return [=](std::shared_ptr<Communicator> ranks, std::uint64_t) {
    std::string text = R"({"train_batch_size": 12, "train_micro_batch_size_per_gpu": )" +
                       std::to_string(12 / ranks->size()) + R"(, "steps_per_print": null, "optimizer": )" +
                       given.optimizer + R"(, "zero_optimization": {)" + given.zero + "}" + given.more + "}";
    for (std::size_t at; (at = text.find("FOLDER")) != std::string::npos;) text.replace(at, 6, folder);
    return std::make_unique<TogetherRun>(text, std::move(ranks), /*largest=*/3000);
  };
}

/// All of `trainings` on two ranks, in one world of processes.
void expect_all_go_on(const std::vector<Training>& trainings) {
  in_worlds({{2, [&](Communicator& ranks, const std::string& folder) {
                for (const Training& training : trainings) {
                  const std::string own = folder + "/" + training.name;
                  std::filesystem::create_directories(own + "/store");
                  const auto make = mixed(training, own + "/store");
                  const at::Tensor values = expect_goes_on(make, shared(ranks), own, training.name);
                  if (ranks.rank() == 0 && training.same_alone) expect_goes_on_alone(make, own, values, training.name);
                  ranks.all_gather_text("test: the next", "");
                }
              }}});
}

std::string optimizer_json(const std::string& type, const std::string& params) {
  return R"({"type": ")" + type + R"(", "params": {"lr": 0.01)" + params + "}}";
}

/// What some optimizers need to be told, so that they have all of their states.
std::string params_of(const std::string& type) {
  if (type == "SGD") return R"(, "momentum": 0.9)";
  if (type == "RMSprop") return R"(, "momentum": 0.9, "centered": true)";
  if (type == "Adam") return R"(, "torch_adam": true, "amsgrad": true)";
  if (type == "ASGD") return R"(, "t0": 2)";
  if (type == "SparseAdam") return R"(, "allow_dense": true)";
  return "";
}

bool is_of_one_bit(const ComponentManifest& optimizer) {
  return std::any_of(optimizer.state.begin(), optimizer.state.end(),
                     [](const StateSpec& state) { return state.per_rank; });
}

TEST(SnapshotStates, OfEveryOptimizerThatIsInstalledGoOn) {
  std::vector<Training> trainings;
  const PluginIndex index = PluginIndex::scan_only(CAPSTAN_TEST_BUILD_DIR "/lib/capstan/plugins/optimizers");
  for (const IndexedPlugin& plugin : index.plugins()) {
    for (const ComponentManifest& component : plugin.manifest.components) {
      const bool first = index.find("optimizer", component.type).component == &component;
      if (component.kind != "optimizer" || !first || is_of_one_bit(component)) continue;
      const bool sparse = component.has_trait("sparse_rows");
      trainings.push_back({component.type, sparse ? R"("stage": 0)" : R"("stage": 1)",
                           optimizer_json(component.type, params_of(component.type)),
                           sparse ? R"(, "sparse_gradients": true)" : ""});
    }
  }
  EXPECT_GE(trainings.size(), 16u);
  expect_all_go_on(trainings);
}

TEST(SnapshotStates, OfOptimizersThatAreEachRanksOwnBeginAnewWithAnotherNumberAndThatIsSaid) {
  in_worlds({{2, [](Communicator& ranks, const std::string& folder) {
                const std::vector<std::pair<std::string, std::string>> optimizers = {
                    {"OneBitAdam", R"(, "freeze_step": 2)"}, {"OneBitLamb", R"(, "freeze_step": 2)"}};
                for (const auto& [type, params] : optimizers) {
                  const std::string own = folder + "/" + type;
                  const auto make = mixed({type, R"("stage": 0)", optimizer_json(type, params), ""}, own);
                  const at::Tensor values = expect_goes_on(make, shared(ranks), own, type);
                  if (ranks.rank() == 0) {
                    EXPECT_THAT(told_by([&] { expect_goes_on_alone(make, own, values, type); }),
                                ::testing::AllOf(HasSubstr("worker_error, server_error of "),
                                                 HasSubstr(" belong to each rank of 2 and start anew with 1.")));
                  }
                  ranks.all_gather_text("test: the next", "");
                }
              }}});
}

const std::string kAdam = optimizer_json("AdamW", R"(, "weight_decay": 0.1)");

TEST(SnapshotStates, OfOffloadsPrecisionsAndQuantisedCollectivesGoOn) {
  expect_all_go_on({
      {"CpuOffload", R"("stage": 2, "offload_optimizer": {"device": "cpu"})", kAdam, ""},
      {"CpuOffloadInPart", R"("stage": 3, "offload_optimizer": {"device": "cpu", "ratio": 0.5})", kAdam, ""},
      // Scales that overflow first, and rise every second step then.
      {"DynamicScale", R"("stage": 2)", kAdam,
       R"(, "fp16": {"enabled": true, "initial_scale_power": 19, "loss_scale_window": 2, "hysteresis": 1})"},
      {"Bf16", R"("stage": 1)", kAdam, R"(, "bf16": {"enabled": true})"},
      {"SecondaryPartition", R"("stage": 3, "zero_hpz_partition_size": 2)", kAdam, ""},
      {"QuantisedWeights", R"("stage": 3, "zero_quantized_weights": true)", kAdam, R"(, "bf16": {"enabled": true})",
       /*same_alone=*/false},
  });
}

/// Ranks on hosts of their own, between which gradients travel in four bits.
TEST(SnapshotStates, OfQuantisedGradientsBetweenHostsGoOn) {
  in_worlds({{2,
              [](Communicator& ranks, const std::string& folder) {
                const auto make =
                    mixed({"QuantisedGradients", R"("stage": 3, "zero_quantized_gradients": true)", kAdam, ""}, folder);
                expect_goes_on(make, shared(ranks), folder, "QuantisedGradients");
              }}},
            /*ranks_per_host=*/1);
}

constexpr const char* kBits = R"("weight_quantization": {"shared_parameters": {"enabled": true,
    "quantize_weight_in_forward": false, "quantize_groups": 2, "rounding": "stochastic",
    "quantization_type": "asymmetric"}, "different_groups": {
    "a": {"params": {"start_bits": 8, "target_bits": 3, "quantization_period": 1}, "modules": ["fc1", "emb"]},
    "b": {"params": {"start_bits": 8, "target_bits": 4, "quantization_period": 2}, "modules": ["fc2"]}}})";
constexpr const char* kMasks = R"("sparse_pruning": {"shared_parameters": {"enabled": true, "method": "topk",
    "schedule_offset": 1}, "different_groups": {"s": {"params": {"dense_ratio": 0.4}, "modules": ["fc"]}}},
  "row_pruning": {"shared_parameters": {"enabled": true, "method": "topk"},
    "different_groups": {"r": {"params": {"dense_ratio": 0.5}, "modules": ["fc1"], "related_modules": [["fc2"]]}}},
  "head_pruning": {"shared_parameters": {"enabled": true, "num_heads": 8, "schedule_offset": 2},
    "different_groups": {"h": {"params": {"dense_ratio": 0.5}, "modules": ["fc2"]}}})";
constexpr const char* kSnip = R"("sparse_pruning": {"shared_parameters": {"enabled": true,
    "method": "snip_momentum", "schedule_offset": 1, "schedule_offset_end": 6, "dense_ratio": 0.3,
    "block_pattern": "4x2", "excluded_modules": ["head"]}})";

TEST(SnapshotStates, OfCompressionsInTheMiddleOfTheirSchedulesGoOn) {
  in_worlds({{2, [](Communicator& ranks, const std::string& folder) {
                const std::string fp16 = R"(, "fp16": {"enabled": true, "loss_scale": 128})";
                const std::vector<Training> trainings = {{"Bits", "", kBits, fp16},
                                                         {"Inputs", "", testing::kNetCompressions, ""},
                                                         {"Masks", "", kMasks, ""},
                                                         {"Snip", "", kSnip, ""}};
                for (const int stage : {1, 3}) {
                  for (const Training& training : trainings) {
                    const std::string what = training.name + "AtStage" + std::to_string(stage);
                    const auto make = [&](std::shared_ptr<Communicator> of, std::uint64_t seed) {
                      const std::string zero =
                          R"({"stage": )" + std::to_string(stage) + R"(, "stage3_param_persistence_threshold": 1000})";
                      return std::make_unique<NetRun>(
                          testing::net_config(of->size(), zero, training.more, "", training.optimizer), of, seed);
                    };
                    const std::string own = folder + "/" + what;
                    const at::Tensor values = expect_goes_on(make, shared(ranks), own, what);
                    if (ranks.rank() == 0) expect_goes_on_alone(make, own, values, what);
                    ranks.all_gather_text("test: the next", "");
                  }
                }
              }}});
}

}  // namespace
}  // namespace capstan
