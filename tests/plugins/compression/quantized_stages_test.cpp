// Compressions beside the other features of stages and ranks: the bits of stage 0, whatever travels.
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "tests/plugins/compression/quantized_net.hpp"
#include "tests/support/ranks.hpp"

namespace capstan::testing {
namespace {

constexpr const char* kTwoMicroBatches = R"(, "gradient_accumulation_steps": 2)";
constexpr const char* kFp16 = R"(, "fp16": {"enabled": true, "initial_scale_power": 20, "hysteresis": 1})";

std::shared_ptr<Communicator> shared(Communicator& communicator) {
  return {&communicator, [](Communicator*) {}};
}

/// Stage 3 with all parameters in parts; `more` are further keys.
std::string third(const std::string& more = "") {
  return R"({"stage": 3, "stage3_param_persistence_threshold": 0)" + more + "}";
}

/// What a run of some steps gave.
struct Seen {
  std::vector<double> losses;
  at::Tensor values;
  double evaluated = 0;
  std::int64_t skipped = 0;
  std::uint64_t gathered = 0;  // bytes that this rank gave
};

Seen train(NetRun& run, int steps = 3) {
  const auto sent = [&] {
    const auto& traffic = run.engine.comms_log().traffic();
    const auto found = traffic.find("all_gather");
    return found == traffic.end() ? 0 : found->second.bytes;
  };
  Seen seen;
  seen.losses = run.steps(1);
  const std::uint64_t before = sent();
  for (const double loss : run.steps(steps - 1)) seen.losses.push_back(loss);
  seen.gathered = sent() - before;
  seen.evaluated = run.evaluated();
  seen.skipped = run.engine.progress().skipped_steps;
  seen.values = run.values();
  return seen;
}

Seen train(Communicator& communicator, const std::string& config, int steps = 3) {
  NetRun run(config, shared(communicator));
  return train(run, steps);
}

void expect_same(const Seen& seen, const Seen& reference, const std::string& how) {
  EXPECT_EQ(seen.losses, reference.losses) << how;
  EXPECT_TRUE(at::equal(seen.values, reference.values)) << how;
  EXPECT_EQ(seen.evaluated, reference.evaluated) << how;
  EXPECT_EQ(seen.skipped, reference.skipped) << how;
}

class QuantizedStages : public ::testing::TestWithParam<int> {};

TEST_P(QuantizedStages, AccumulateAndSkipStepsAsStageZero) {
  test::expect_on_ranks(GetParam(), [](Communicator& communicator) {
    for (const auto& [more, steps] : {std::pair("", 3), std::pair(kFp16, 6)}) {
      const auto seen = [&](const std::string& zero) {
        return train(communicator, net_config(communicator.size(), zero, std::string(kTwoMicroBatches) + more), steps);
      };
      const Seen zero = seen(R"({"stage": 0})"), second = seen(R"({"stage": 2})");
      EXPECT_EQ(zero.skipped > 0, steps > 3);
      EXPECT_LT(zero.skipped, steps - 1);
      expect_same(seen(R"({"stage": 1})"), zero, more);
      // Micro-batches are added up in another order than at stages 0 and 1.
      EXPECT_NEAR(second.losses.back(), zero.losses.back(), 0.02 * zero.losses.back());
      EXPECT_EQ(second.skipped > 0, steps > 3);
      for (const std::string& way : {third(), std::string(R"({"stage": 3})")}) {
        expect_same(seen(way), second, way + more);
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, QuantizedStages, ::testing::Values(2, 4));

TEST(QuantizedWeightsAtStageThree, AreThoseOfStageZeroBesideASecondPartitionAndCodesOfTheRest) {
  test::expect_on_ranks(4, [](Communicator& communicator) {
    const auto config = [&](const std::string& zero) { return net_config(4, zero); };
    const Seen reference = train(communicator, config(R"({"stage": 0})"));
    for (const char* ranks : {"2", "4"}) {
      const std::string nearby = std::string(R"(, "zero_hpz_partition_size": )") + ranks;
      expect_same(train(communicator, config(third(nearby))), reference, nearby);
    }
    // It rounds what has no codes, of which 7 elements are too few.
    const std::string quantized = R"(, "zero_quantized_weights": true)";
    expect_same(train(communicator, config(third(quantized))), reference, quantized);
    expect_same(train(communicator, config(third(quantized + R"(, "zero_hpz_partition_size": 2)"))), reference, "both");
  });
}

/// The same values, which a compression after the quantiser copies, so that they have no codes.
TEST(QuantizedWeightsAtStageThree, TrainTheBitsOfARunInWhichValuesTravel) {
  setenv("CAPSTAN_PLUGIN_PATH", CAPSTAN_TEST_BUILD_DIR "/tests/compression_plugins", 1);
  test::expect_on_ranks(2, [](Communicator& communicator) {
    const std::string copies = R"("compressions": [{"type": "test_grid", "params": {"share": 0, "mean_share": 0,
        "groups": {"emb.weight": 1, "fc1.weight": 1, "fc2.weight": 1}}}])";
    const std::string zero = third(R"(, "stage3_max_reuse_distance": 0, "stage3_prefetch_bucket_size": 0)");
    const Seen codes = train(communicator, net_config(2, zero));
    const Seen values = train(communicator, net_config(2, zero, "", copies));
    expect_same(codes, values, "");
    // A step gathers the embedding three times, the layers twice: codes of 8 bits, of 4 in fc2, and a scale a group.
    const auto of_all_ranks = [&](const Seen& seen) {
      double sum = 0;
      for (const std::string& bytes : communicator.all_gather_text("test: bytes", std::to_string(seen.gathered))) {
        sum += std::stod(bytes);
      }
      return sum;
    };
    const double embedding = 512 * 256, layer = 384 * 256;
    const double coded = 3 * (embedding + 4 * 512) + 2 * (layer + layer / 2 + 2 * 4 * 4);
    const double share = coded / (3 * 4 * embedding + 2 * 2 * 4 * layer);
    EXPECT_NEAR(of_all_ranks(codes) / of_all_ranks(values), share, 0.01 * share);
  });
}

TEST(QuantizedWeightsAtStageThree, OfAModelThatIsBornPartitionedAreThoseOfOneThatWasBuiltWhole) {
  test::expect_on_ranks(2, [](Communicator& communicator) {
    for (const char* more : {"", R"(, "bf16": {"enabled": true})"}) {
      for (const std::string& zero : {third(), std::string(R"({"stage": 3})")}) {
        const std::string config = net_config(2, zero, more);
        NetRun whole(config, shared(communicator)),
            born(config, shared(communicator), 1, std::make_shared<DeferredValues>(1));
        EXPECT_TRUE(at::equal(born.values(), whole.values())) << zero << more;
        expect_same(train(born), train(whole), zero + more);
      }
    }
  });
}

}  // namespace
}  // namespace capstan::testing
