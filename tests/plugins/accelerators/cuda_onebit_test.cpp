// The 1-bit optimizers on a GPU, beside the CPU's. Skipped where there is none.
#include <ATen/Context.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/config/resolve/launcher_world.hpp"
#include "plugins/optimizers/onebit/cuda_kernels.hpp"
#include "tests/plugins/optimizers/kernel_agreement.hpp"
#include "tests/plugins/optimizers/onebit_ranks.hpp"

namespace capstan::testing {
namespace {

class CudaOneBit : public ::testing::Test {
 protected:
  void SetUp() override {
    if (visible_gpus() == 0) GTEST_SKIP() << "this machine has no NVIDIA GPU";
    if (!cpu_fuses()) GTEST_SKIP() << "this CPU has no fused multiply-add";
    // The accelerator's plugin brings LibTorch's operators for the device.
    const char* accelerator = CAPSTAN_TEST_BUILD_DIR "/lib/capstan/plugins/accelerators/libcapstan_accelerator_cuda.so";
    if (!dlopen(accelerator, RTLD_NOW | RTLD_GLOBAL)) GTEST_SKIP() << dlerror();
    at::globalContext().lazyInitDevice(at::kCUDA);
    kernels_ = optimizers::cuda_kernels([] { return nullptr; });
  }

  const at::Device device_{at::kCUDA, 0};
  std::unique_ptr<optimizers::Kernels> kernels_;
};

TEST_F(CudaOneBit, StepsGiveTheBitsOfTheCpu) { expect_steps_of_the_cpu(*kernels_, device_); }
TEST_F(CudaOneBit, MeasuringStepsGiveTheBitsOfTheCpu) { expect_measures_of_the_cpu(*kernels_, device_); }
TEST_F(CudaOneBit, MovesMemoryAsTheCpuDoes) { expect_memory_of_the_cpu(*kernels_, device_); }
TEST_F(CudaOneBit, CompressionGivesTheBitsOfTheCpu) { expect_compression_of_the_cpu(*kernels_, device_); }

TEST_F(CudaOneBit, SumsAreTheSameEachTime) {
  const at::Tensor values = noise(10'000'019, 3).to(device_);
  const at::Tensor sums = noise(20, 4).to(at::kDouble).zero_().to(device_);
  for (int i = 0; i < 20; ++i) {
    kernels_->measure(values.const_data_ptr<float>(), static_cast<std::size_t>(values.numel()),
                      sums.data_ptr<double>() + i);
  }
  const auto all = values_of(sums.cpu());
  for (const double sum : all) EXPECT_EQ(sum, all[0]);
}

struct Type {
  const char *plugin, *type, *params;
};
constexpr Type kTypes[] = {
    {"onebit_adam", "OneBitAdam", R"({"freeze_step": 15, "weight_decay": 0.01})"},
    {"onebit_adam", "OneBitAdam", R"({"freeze_step": 15, "comm_backend_name": "gloo"})"},
    {"onebit_lamb", "OneBitLamb", R"({"freeze_step": 15, "weight_decay": 0.01})"},
    {"zero_one_adam", "ZeroOneAdam",
     R"({"var_freeze_step": 20, "var_update_scaler": 3, "weight_decay": 0.01, "local_step_scaler": 4,
         "local_step_clipper": 4})"}};

/// Ranks as threads, which share the GPU.
TEST_F(CudaOneBit, OptimizersTrainAsOnTheCpuInGroupsOfAnySize) {
  constexpr int kUpdates = 50;
  for (const Type& type : kTypes) {
    for (const std::uint32_t ranks : {1u, 2u, 3u}) {
      Problem problem = noisy_problem(ranks, {37, 5, 64, 20'011}, 4);
      problem.clip = 100;
      const auto trained = [&](const std::string& plugin, at::Device where) {
        std::vector<std::vector<float>> values(ranks);
        run_ranks(
            problem, plugin, type.type, type.params, kUpdates,
            [&](RankOfProblem& rank, std::uint32_t at, int t) {
              if (t == kUpdates) values[at] = rank.bits();
            },
            where);
        return values;
      };
      const auto here = trained(type.plugin, at::kCPU), there = trained(type.plugin + std::string("_cuda"), device_);
      for (std::uint32_t rank = 0; rank < ranks; ++rank) {
        for (std::size_t i = 0; i < here[rank].size(); ++i) {
          ASSERT_NEAR(there[rank][i], here[rank][i], 1e-5 * (1 + std::abs(here[rank][i])))
              << type.params << ", rank " << rank << " of " << ranks << ", element " << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace capstan::testing
