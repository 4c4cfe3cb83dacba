// Memory that nobody has written is never read: results are equal where fresh memory holds NaN.

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/core/zero/mixed_model.hpp"
#include "tests/support/ranks.hpp"

namespace capstan {
namespace {

using test::MixedRun;

/// While it lives, LibTorch fills every fresh tensor with NaN, integers with their largest value.
class NanInFreshMemory {
 public:
  NanInFreshMemory() { set(true); }
  ~NanInFreshMemory() { set(false); }

 private:
  static void set(bool on) {
    at::globalContext().setDeterministicAlgorithms(on, /*warn_only=*/true);
    at::globalContext().setDeterministicFillUninitializedMemory(on);
  }
};

const char* const kSettings[] = {
    R"("zero_optimization": {"stage": 0})",
    R"("zero_optimization": {"stage": 1, "reduce_bucket_size": 3000})",
    R"("zero_optimization": {"stage": 2, "reduce_bucket_size": 3000, "overlap_comm": true})",
    R"("zero_optimization": {"stage": 3, "reduce_bucket_size": 3000})",
    R"("bf16": {"enabled": true}, "zero_optimization": {"stage": 2})",
    R"("fp16": {"enabled": true, "initial_scale_power": 4}, "zero_optimization": {"stage": 3})",
    R"("zero_optimization": {"stage": 3, "zero_quantized_weights": true})",
    R"("zero_optimization": {"stage": 3, "zero_hpz_partition_size": 2})",
    R"("zero_optimization": {"stage": 3, "zero_quantized_gradients": true})",
    R"("zero_optimization": {"stage": 3, "zero_quantized_gradients": true,
       "reduce_bucket_size": 3000})",
    R"("zero_optimization": {"stage": 3, "zero_quantized_gradients": true, "reduce_bucket_size": 3000,
       "zeropp_loco_param": {"err_beta": 0.8, "reset_T": 1024}})",
    R"("communication_data_type": "fp16", "zero_optimization": {"stage": 1})",
};

/// The parameters after three steps of two micro-batches.
at::Tensor trained(Communicator& communicator, const std::string& sections) {
  const std::string config =
      R"({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2, "steps_per_print": null,
          "optimizer": {"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9}}, "gradient_clipping": 1, )" +
      sections + "}";
  MixedRun run(config, {&communicator, [](Communicator*) {}}, /*seed=*/3, /*largest=*/10'000);
  run.steps(3);
  return run.values();
}

TEST(FreshMemory, ThatHoldsNanChangesNothing) {
  test::expect_on_ranks(2,
                        [](Communicator& communicator) {
                          for (const char* sections : kSettings) {
                            const at::Tensor plain = trained(communicator, sections);
                            const NanInFreshMemory fill;
                            ASSERT_TRUE(std::isnan(at::empty({1}).item<float>()));
                            EXPECT_TRUE(at::equal(trained(communicator, sections), plain)) << sections;
                          }
                        },
                        {.ranks_per_host = 1});
}

}  // namespace
}  // namespace capstan
