// Quantising in the update (MoQ) on several ranks: the bits of stage 0 at all stages, and after a resume.
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "core/checkpoint/checkpoint.hpp"
#include "tests/core/data/temporary_folder.hpp"
#include "tests/plugins/compression/quantized_net.hpp"
#include "tests/support/ranks.hpp"

namespace capstan::testing {
namespace {

constexpr const char* kFp16 = R"(, "fp16": {"enabled": true, "loss_scale": 128})";
const std::string kThird = R"({"stage": 3, "stage3_param_persistence_threshold": 0})";

/// Groups of which some end inside of ranks' parts; `shared` are further keys.
std::string moq(const std::string& shared, int start, int target, int period) {
  const auto params = [&](int more) {
    return R"({"params": {"start_bits": )" + std::to_string(start) + R"(, "target_bits": )" + std::to_string(target) +
           R"(, "quantization_period": )" + std::to_string(period + more) + R"(}, "modules": [)";
  };
  return R"("weight_quantization": {"shared_parameters": {"enabled": true, "quantize_weight_in_forward": false,
      "quantize_groups": 2)" +
         shared + R"(}, "different_groups": {"a": )" + params(0) + R"("fc1", "emb"]}, "b": )" + params(1) +
         R"("fc2"]}}})";
}

const std::vector<std::string> kMethods = {
    moq("", 8, 4, 1),
    moq(R"(, "quantization_type": "asymmetric", "rounding": "stochastic")", 9, 5, 1),
    moq(R"(, "fp16_mixed_quantize": {"enabled": true, "quantize_change_ratio": 0.3})", 6, 4, 2),
    moq("", 3, 1, 2),
};

std::shared_ptr<Communicator> shared(Communicator& communicator) {
  return {&communicator, [](Communicator*) {}};
}

std::string shared_folder(Communicator& communicator, std::optional<test::TemporaryFolder>& folder) {
  if (communicator.rank() == 0) folder.emplace();
  return communicator.all_gather_text("test: folder", folder ? folder->path().string() : "").front();
}

/// What the compressions of a checkpoint remember: bits, and when they fall next.
std::string states_of(NetRun& run, const std::string& dir, const std::string& tag = "states") {
  run.engine.save_checkpoint(dir, tag);
  return read_checkpoint(dir, tag).state.at("compressions").dump();
}

std::string config_of(int ranks, const std::string& zero, const std::string& method) {
  return net_config(ranks, zero, kFp16, "", method);
}

class UpdateStages : public ::testing::TestWithParam<int> {};

TEST_P(UpdateStages, HaveTheBitsAndWeightsOfStageZero) {
  test::expect_on_ranks(GetParam(), [](Communicator& communicator) {
    std::optional<test::TemporaryFolder> folder;
    const std::string dir = shared_folder(communicator, folder);
    for (const std::string& method : kMethods) {
      NetRun zero(config_of(communicator.size(), R"({"stage": 0})", method), shared(communicator));
      const std::vector<double> losses = zero.steps(5);
      const std::string states = states_of(zero, dir);
      EXPECT_THAT(states, ::testing::HasSubstr("fc1.weight"));
      for (const std::string& stage : {std::string(R"({"stage": 1})"), std::string(R"({"stage": 2})"), kThird}) {
        NetRun run(config_of(communicator.size(), stage, method), shared(communicator));
        EXPECT_EQ(run.steps(5), losses) << stage << method;
        EXPECT_TRUE(at::equal(run.values(), zero.values())) << stage << method;
        EXPECT_EQ(states_of(run, dir), states) << stage << method;
      }
    }
    communicator.all_gather_text("test: end", "");
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, UpdateStages, ::testing::Values(2, 4));

TEST(UpdateQuantizationRuns, GoOnWhereTheyWereSaved) {
  test::expect_on_ranks(2, [](Communicator& communicator) {
    std::optional<test::TemporaryFolder> folder;
    const std::string dir = shared_folder(communicator, folder);
    for (const std::string& method : kMethods) {
      for (const std::string& stage : {std::string(R"({"stage": 1})"), kThird}) {
        const std::string config = config_of(2, stage, method);
        NetRun straight(config, shared(communicator)), resumed(config, shared(communicator), 2);
        straight.steps(2);
        straight.engine.save_checkpoint(dir, "two");
        const at::Tensor saved = straight.values();
        resumed.engine.load_checkpoint(dir, "two");
        EXPECT_TRUE(at::equal(resumed.values(), saved)) << stage << method;
        EXPECT_EQ(resumed.steps(4), straight.steps(4)) << stage << method;
        EXPECT_TRUE(at::equal(resumed.values(), straight.values())) << stage << method;
        EXPECT_EQ(states_of(resumed, dir, "resumed"), states_of(straight, dir, "straight")) << stage << method;
        // Back to where it was.
        straight.engine.load_checkpoint(dir, "two");
        EXPECT_TRUE(at::equal(straight.values(), saved)) << stage << method;
      }
    }
    communicator.all_gather_text("test: end", "");
  });
}

/// In another world the loss is summed up otherwise; what was saved is the same.
class UpdateInAnotherWorld : public ::testing::TestWithParam<int> {};

TEST_P(UpdateInAnotherWorld, GoesOnWithTheBitsAndWeightsThatWereSaved) {
  test::expect_on_ranks(GetParam(), [](Communicator& communicator) {
    std::optional<test::TemporaryFolder> folder;
    const std::string dir = shared_folder(communicator, folder);
    for (const std::string& method : kMethods) {
      // Each rank trains alone, to the same end, and rank 0's checkpoint is loaded.
      const test::TemporaryFolder own;
      NetRun alone(config_of(1, R"({"stage": 0})", method), Communicator::alone());
      alone.steps(3);
      const std::string states = states_of(alone, communicator.rank() == 0 ? dir : own.path().string(), "alone");
      const at::Tensor values = alone.values();
      const double next = alone.step();
      communicator.all_gather_text("test: saved", "");
      NetRun run(config_of(communicator.size(), kThird, method), shared(communicator), 2);
      run.engine.load_checkpoint(dir, "alone");
      EXPECT_TRUE(at::equal(run.values(), values)) << method;
      EXPECT_EQ(states_of(run, dir, "here"), states) << method;
      // The loss is summed up otherwise.
      EXPECT_NEAR(run.step(), next, 1e-3 * next) << method;
      communicator.all_gather_text("test: loaded", "");
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, UpdateInAnotherWorld, ::testing::Values(2, 4));

}  // namespace
}  // namespace capstan::testing
