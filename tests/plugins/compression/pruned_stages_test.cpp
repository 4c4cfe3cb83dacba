// Pruning at every stage and number of processes: the same masks, scores and weights.
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>

#include "core/checkpoint/checkpoint.hpp"
#include "core/checkpoint/export.hpp"
#include "tests/core/data/temporary_folder.hpp"
#include "tests/plugins/compression/quantized_net.hpp"
#include "tests/support/ranks.hpp"

namespace capstan::testing {
namespace {

constexpr const char* kLearned = R"("sparse_pruning": {"shared_parameters": {"enabled": true, "method": "topk",
    "schedule_offset": 1}, "different_groups": {"s": {"params": {"dense_ratio": 0.4}, "modules": ["fc"]}}},
  "row_pruning": {"shared_parameters": {"enabled": true, "method": "topk"},
    "different_groups": {"r": {"params": {"dense_ratio": 0.5}, "modules": ["fc1"], "related_modules": [["fc2"]]}}},
  "head_pruning": {"shared_parameters": {"enabled": true, "num_heads": 8, "schedule_offset": 2},
    "different_groups": {"h": {"params": {"dense_ratio": 0.5}, "modules": ["fc2"]}}})";
constexpr const char* kFixed = R"("weight_quantization": {"shared_parameters": {"enabled": true,
    "quantize_weight_in_forward": true, "quantize_groups": 4},
    "different_groups": {"w8": {"params": {"start_bits": 8, "target_bits": 8}, "modules": ["fc"]}}},
  "sparse_pruning": {"shared_parameters": {"enabled": true, "method": "l1"},
    "different_groups": {"s": {"params": {"dense_ratio": 0.3}, "modules": ["fc2"]}}},
  "row_pruning": {"shared_parameters": {"enabled": true, "method": "l1", "schedule_offset": 2},
    "different_groups": {"r": {"params": {"dense_ratio": 0.5}, "modules": ["fc1"]}}})";
constexpr const char* kStructured = R"("sparse_pruning": {"shared_parameters": {"enabled": true,
    "method": "snip_momentum", "schedule_offset": 1, "schedule_offset_end": 4, "dense_ratio": 0.3,
    "block_pattern": "4x2", "excluded_modules": ["head"]}})";

const std::string kClipped = R"(, "gradient_clipping": 0.05)";

std::shared_ptr<Communicator> shared(Communicator& communicator) {
  return {&communicator, [](Communicator*) {}};
}

std::string stage(int number) {
  return R"({"stage": )" + std::to_string(number) + R"(, "stage3_param_persistence_threshold": 1000})";
}

/// A folder that all ranks know; rank 0 has made it.
std::string shared_folder(Communicator& communicator, std::optional<test::TemporaryFolder>& folder) {
  if (communicator.rank() == 0) folder.emplace();
  return communicator.all_gather_text("test: folder", folder ? folder->path().string() : "").front();
}

/// Parameters, trained states and masks of a checkpoint, whole.
std::map<std::string, at::Tensor> tensors_of(const std::string& dir, const std::string& tag) {
  std::map<std::string, at::Tensor> whole;
  const CheckpointContents contents = read_checkpoint(dir, tag);
  for (const CheckpointTensor& part : contents.tensors) {
    if (part.state.starts_with("rng") || part.state.find("generator") != std::string::npos) continue;
    at::Tensor& all = whole[part.parameter + " " + part.state];
    if (!all.defined()) all = at::empty({c10::multiply_integers(part.shape)}, part.values.options());
    all.narrow(0, part.offset, part.values.numel()).copy_(part.values.view({-1}));
  }
  return whole;
}

void expect_same(const std::map<std::string, at::Tensor>& ones, const std::map<std::string, at::Tensor>& others,
                 const std::string& how) {
  ASSERT_EQ(ones.size(), others.size()) << how;
  for (const auto& [name, values] : ones) {
    ASSERT_TRUE(others.contains(name)) << how << name;
    EXPECT_TRUE(at::equal(values, others.at(name))) << how << ", " << name;
  }
}

class PrunedStages : public ::testing::TestWithParam<std::pair<int, const char*>> {};

TEST_P(PrunedStages, TrainTheSameMasksScoresAndWeightsAtAll) {
  const auto [world, compressions] = GetParam();
  test::expect_on_ranks(world, [text = std::string(compressions)](Communicator& ranks) {
    std::optional<test::TemporaryFolder> folder;
    const std::string dir = shared_folder(ranks, folder);
    std::vector<double> losses;
    for (const int number : {0, 1, 2, 3}) {
      const std::string tag = "stage" + std::to_string(number);
      NetRun run(net_config(ranks.size(), stage(number), kClipped, "", text), shared(ranks));
      const std::vector<double> of_stage = run.steps(5);
      run.engine.save_checkpoint(dir, tag);
      if (number == 0) losses = of_stage;
      EXPECT_EQ(of_stage, losses) << number;
      expect_same(tensors_of(dir, "stage0"), tensors_of(dir, tag), tag);
    }
    const auto all = tensors_of(dir, "stage0");
    EXPECT_TRUE(std::any_of(all.begin(), all.end(),
                            [](const auto& one) { return one.first.find("mask") != std::string::npos; }));
    ranks.all_gather_text("test: end", "");  // the folder ends with rank 0
  });
}

INSTANTIATE_TEST_SUITE_P(Methods, PrunedStages,
                         ::testing::Values(std::pair(2, kLearned), std::pair(4, kLearned), std::pair(2, kFixed),
                                           std::pair(2, kStructured), std::pair(4, kStructured)));

/// Steps of a run that ends after three and goes on from its checkpoint, at another stage.
TEST(PrunedRuns, GoOnFromACheckpointAtAnyStage) {
  test::expect_on_ranks(2, [](Communicator& ranks) {
    std::optional<test::TemporaryFolder> folder;
    const std::string dir = shared_folder(ranks, folder);
    for (const std::string compressions : {kLearned, kFixed, kStructured}) {
      NetRun straight(net_config(2, stage(0), kClipped, "", compressions), shared(ranks));
      straight.steps(3);
      straight.engine.save_checkpoint(dir, "half");
      const std::vector<double> rest = straight.steps(3);
      for (const int number : {0, 3}) {
        NetRun resumed(net_config(2, stage(number), kClipped, "", compressions), shared(ranks), /*seed=*/8);
        resumed.engine.load_checkpoint(dir, "half");
        EXPECT_EQ(resumed.steps(3), rest) << number << compressions;
        EXPECT_TRUE(at::equal(resumed.values(), straight.values())) << number << compressions;
      }
    }
    ranks.all_gather_text("test: end", "");
  });
}

/// Four ranks train and save; two take it up, and save it again.
TEST(PrunedRuns, BringTheirMasksAndScoresToAnotherNumberOfProcesses) {
  const char* given = std::getenv("CAPSTAN_TEST_FOLDER");
  std::optional<test::TemporaryFolder> folder;
  if (given == nullptr) setenv("CAPSTAN_TEST_FOLDER", folder.emplace().path().c_str(), 1);
  const std::string dir = std::getenv("CAPSTAN_TEST_FOLDER");
  const auto body = [&](Communicator& ranks) {
    for (const char* compressions : {kLearned, kStructured}) {
      const std::string name = compressions == kLearned ? "learned" : "structured";
      NetRun run(net_config(ranks.size(), stage(3), "", "", compressions), shared(ranks), /*seed=*/8);
      if (ranks.size() == 2) run.engine.load_checkpoint(dir, name + "4");
      if (ranks.size() == 4) run.steps(3);
      run.engine.save_checkpoint(dir, name + std::to_string(ranks.size()));
    }
  };
  for (const int ranks : {4, 2}) test::expect_on_ranks(ranks, body);
  for (const std::string name : {"learned", "structured"}) {
    expect_same(tensors_of(dir, name + "4"), tensors_of(dir, name + "2"), name);
  }
}

TEST(PrunedRuns, MakeMasksOfWeightsThatWereLoaded) {
  const test::TemporaryFolder folder;
  const std::string dir = folder.path().string();
  NetRun other(net_config(1, stage(0), "", "", ""), Communicator::alone(), /*seed=*/5);
  other.engine.save_checkpoint(dir, "other");
  NetRun fresh(net_config(1, stage(0), "", "", kFixed), Communicator::alone(), /*seed=*/5);
  fresh.engine.save_checkpoint(dir, "fresh");
  // A run that prunes goes on from one that did not: the masks are those of its weights.
  NetRun joined(net_config(1, stage(0), "", "", kFixed), Communicator::alone(), /*seed=*/1);
  joined.engine.load_checkpoint(dir, "other");
  joined.engine.save_checkpoint(dir, "joined");
  // The same of one that begins with weights of a file.
  export_checkpoint(dir, "other", ExportFormat::kSafetensors, folder / "other.safetensors");
  NetRun begun(net_config(1, stage(0), "", "", kFixed), Communicator::alone(), /*seed=*/1);
  begun.engine.load_weights((folder / "other.safetensors").string());
  begun.engine.save_checkpoint(dir, "begun");
  const auto expected = tensors_of(dir, "fresh");
  for (const char* tag : {"joined", "begun"}) {
    const auto made = tensors_of(dir, tag);
    for (const auto& [name, values] : expected) {
      if (name.find("mask") != std::string::npos) EXPECT_TRUE(at::equal(values, made.at(name))) << tag << name;
    }
  }
}

TEST(PrunedRuns, OfAModelThatIsBornPartitionedAreThoseOfOneThatWasBuiltWhole) {
  test::expect_on_ranks(2, [](Communicator& ranks) {
    const std::string config = net_config(2, stage(3), kClipped, "", kLearned);
    NetRun whole(config, shared(ranks)), born(config, shared(ranks), 1, std::make_shared<DeferredValues>(1));
    EXPECT_TRUE(at::equal(born.values(), whole.values()));
    EXPECT_EQ(born.steps(4), whole.steps(4));
    EXPECT_TRUE(at::equal(born.values(), whole.values()));
  });
}

TEST(PrunedRuns, ComputeInSixteenBitsOfTheSameMasksAtAllStages) {
  test::expect_on_ranks(2, [](Communicator& ranks) {
    for (const std::string compressions : {kLearned, kFixed, kStructured}) {
      const auto run = [&](int number) {
        NetRun made(net_config(2, stage(number), R"(, "bf16": {"enabled": true})", "", compressions), shared(ranks));
        const std::vector<double> losses = made.steps(4);
        return std::pair(losses, made.values());
      };
      const auto zero = run(0), third = run(3);
      EXPECT_EQ(zero.first, third.first) << compressions;
      EXPECT_TRUE(at::equal(zero.second, third.second)) << compressions;
    }
  });
}

}  // namespace
}  // namespace capstan::testing
