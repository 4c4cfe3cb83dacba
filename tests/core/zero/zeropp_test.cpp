#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

#include "core/comm/comms_log.hpp"
#include "tests/core/zero/mixed_model.hpp"
#include "tests/support/ranks.hpp"

namespace capstan {
namespace {

using test::MixedRun;

/// What a run of two steps of two micro-batches gave.
struct Seen {
  std::vector<double> losses;
  at::Tensor values;
  double grad_norm = 0;
  std::uint64_t gathered = 0, reduced = 0, exchanged = 0;  // bytes that this rank gave
};

Seen train(Communicator& communicator, const std::string& zeropp) {
  const std::string config = R"({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2,
    "steps_per_print": null, "optimizer": {"type": "SGD", "params": {"lr": 0.1}}, "gradient_clipping": 0,
    "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0, "stage3_max_reuse_distance": 0)" +
                             zeropp + "}}";
  const auto sent = [&](const char* collective) {
    const auto& traffic = communicator.log().traffic();
    const auto found = traffic.find(collective);
    return found == traffic.end() ? 0 : found->second.bytes;
  };
  MixedRun run(config, {&communicator, [](Communicator*) {}}, /*seed=*/2);
  run.model.skips = false;
  run.engine.want_grad_norm(true);
  const std::uint64_t gathered = sent("all_gather"), reduced = sent("reduce_scatter"),
                      exchanged = sent("all_to_all_single");
  Seen seen;
  seen.losses = run.steps(2);
  seen.grad_norm = run.engine.last_step().grad_norm;
  seen.gathered = sent("all_gather") - gathered;
  seen.reduced = sent("reduce_scatter") - reduced;
  seen.exchanged = sent("all_to_all_single") - exchanged;
  seen.values = run.values();
  return seen;
}

void expect_close(const Seen& seen, const Seen& plain, double relative) {
  for (std::size_t i = 0; i < plain.losses.size(); ++i) {
    EXPECT_NEAR(seen.losses[i], plain.losses[i], relative * std::abs(plain.losses[i]));
  }
  EXPECT_NEAR(seen.grad_norm, plain.grad_norm, relative * plain.grad_norm);
  EXPECT_FALSE(at::equal(seen.values, plain.values));
}

TEST(SecondaryPartition, GathersNearbyWhatWasGatheredOnce) {
  test::expect_on_ranks(4, [](Communicator& communicator) {
    const Seen plain = train(communicator, "");
    EXPECT_EQ(plain.exchanged, 0U);
    for (const char* ranks : {"2", "4", "9"}) {
      const Seen seen = train(communicator, std::string(R"(, "zero_hpz_partition_size": )") + ranks);
      EXPECT_EQ(seen.losses, plain.losses);
      EXPECT_TRUE(at::equal(seen.values, plain.values));
      EXPECT_GT(seen.exchanged, 0U);
      // Two micro-batches: all ranks' parts travel in the first one alone. Parameters are most of what is gathered.
      EXPECT_LT(seen.gathered, plain.gathered * 6 / 10);
    }
  });
}

TEST(QuantizedWeights, TravelInAboutAQuarterOfTheBytes) {
  test::expect_on_ranks(3, [](Communicator& communicator) {
    const Seen plain = train(communicator, ""), seen = train(communicator, R"(, "zero_quantized_weights": true)");
    expect_close(seen, plain, 0.02);
    EXPECT_LT(seen.gathered, plain.gathered * 4 / 10);  // parts that 8 does not divide travel as they are
  });
}

TEST(QuantizedGradients, TravelAsFourBitsBetweenHosts) {
  for (const int per_host : {1, 2}) {
    test::expect_on_ranks(
        4,
        [](Communicator& communicator) {
          const Seen plain = train(communicator, "");
          for (const char* zeropp :
               {R"(, "zero_quantized_gradients": true)",
                R"(, "zero_quantized_gradients": true, "zeropp_loco_param": {"err_beta": 0.8, "reset_T": 1024})"}) {
            const Seen seen = train(communicator, zeropp);
            expect_close(seen, plain, 0.1);
            // Codes go through all_to_all; parameters of fewer than two dimensions stay as they are.
            EXPECT_LT(seen.reduced + seen.exchanged, plain.reduced * 3 / 10);
          }
        },
        {.ranks_per_host = per_host});
    if (std::getenv("CAPSTAN_TEST_IS_RANK") != nullptr) return;
  }
}

TEST(QuantizedGradients, TravelAsTheyAreWithinAHost) {
  test::expect_on_ranks(2, [](Communicator& communicator) {
    const Seen plain = train(communicator, ""), seen = train(communicator, R"(, "zero_quantized_gradients": true)");
    EXPECT_TRUE(at::equal(seen.values, plain.values));
  });
}

}  // namespace
}  // namespace capstan
