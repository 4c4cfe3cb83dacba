// What a user sees of the accelerator on a machine without a GPU: real processes.

#include <gmock/gmock.h>

#include "tests/cli/programs.hpp"

namespace capstan::cli {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kConfig = R"({
  "train_batch_size": 4,
  "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
  "capstan": {"model": {"type": "mlp", "params": {}}}
})";

/// Runs with every GPU hidden, so that a machine that has one says the same.
class CudaAbsent : public ::testing::Test {
 protected:
  CudaAbsent() {
    write_bytes(folder_ / "config.json", kConfig);
    write_bytes(folder_ / "text.txt", some_text());
  }
  ProcessResult train(const std::vector<std::string>& more, std::vector<std::string> environment = {}) const {
    std::vector<std::string> words = {"train", "--config", "config.json", "--data", "text.txt", "--steps", "2"};
    words.insert(words.end(), more.begin(), more.end());
    environment.push_back("CUDA_VISIBLE_DEVICES=");
    return run_capstan(folder_, words, {.environment = environment});
  }
  TemporaryFolder folder_;
};

TEST_F(CudaAbsent, TrainsOnTheCpuWithoutBeingAsked) {
  const ProcessResult result = train({});

  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("trained 2 steps"));
}

TEST_F(CudaAbsent, LoadsNothingOfCudaOnTheCpu) {
  const std::string log = (folder_ / "loaded").string();
  ASSERT_EQ(train({}, {"LD_DEBUG=files", "LD_DEBUG_OUTPUT=" + log}).exit_code, 0);

  std::string files;
  for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
    if (entry.path().string().starts_with(log)) files += read_bytes(entry.path());
  }
  EXPECT_THAT(files, HasSubstr("libtorch_cpu.so"));
  for (const char* library :
       {"libtorch_cuda", "libc10_cuda", "libnccl", "libcublas", "accelerator_cuda", "adam_cuda"}) {
    EXPECT_THAT(files, Not(HasSubstr(library)));
  }
}

#ifdef CAPSTAN_TEST_HAS_CUDA

TEST_F(CudaAbsent, IsASentenceWhenAskedFor) {
  const ProcessResult result = train({"--device", "cuda"});

  EXPECT_THAT(result.exit_code, AnyOf(1, 4));
  // The device, or what its libraries need, is missing: either is said, and how to go on.
  EXPECT_THAT(result.err, AnyOf(HasSubstr("no cuda device was found: "),
                                HasSubstr("libcapstan_accelerator_cuda.so: cannot be loaded: its dependency ")));
  EXPECT_THAT(result.err, HasSubstr("--device cpu"));
  EXPECT_THAT(result.err, HasSubstr("trains on the CPU"));
}

TEST_F(CudaAbsent, IsFoundByLibTorchWhereThereIsOne) {
  // With a GPU that is only counted, a run comes as far as the driver.
  const ProcessResult result =
      train({"--device", "cuda"}, {"LD_PRELOAD=" CAPSTAN_TEST_FAKE_GPU, "LD_LIBRARY_PATH=" CAPSTAN_TEST_STUBS});

  EXPECT_EQ(result.exit_code, 4);
  EXPECT_THAT(result.err, Not(HasSubstr("Cannot initialize CUDA without ATen_cuda library")));
  EXPECT_THAT(result.err, AnyOf(HasSubstr("CUDA driver version is insufficient"), HasSubstr("no NVIDIA driver"),
                                HasSubstr("no CUDA-capable device is detected")));
}

TEST_F(CudaAbsent, IsNamedToAProgramThatSeedsFirst) {
  const ProcessResult result =
      run_process({CAPSTAN_TEST_BUILD_DIR "/tests/capstan_seeds_first"},
                  {.environment = {"LD_PRELOAD=" CAPSTAN_TEST_FAKE_GPU, "LD_LIBRARY_PATH=" CAPSTAN_TEST_STUBS}});

  EXPECT_EQ(
      result.err,
      "accelerator 'cuda': LibTorch looked for CUDA before this plugin was loaded, and looks once in a process: at "
      "the first seed (torch::manual_seed) or pinned tensor. Call capstan::use_device with the configuration "
      "before those.\n");
}

TEST_F(CudaAbsent, IsListed) {
  const ProcessResult result = run_capstan(folder_, {"plugins", "list"});

  EXPECT_THAT(result.out, HasSubstr("capstan-cuda"));
  EXPECT_THAT(result.out, HasSubstr("AdamW (cuda)"));
  EXPECT_THAT(result.out, HasSubstr("SGD (cuda)"));
  EXPECT_THAT(result.out, HasSubstr("OneBitAdam (cuda)"));
  EXPECT_THAT(result.out, HasSubstr("capstan-onebit-adam-cuda"));
  EXPECT_THAT(result.out, HasSubstr("OneBitLamb (cuda)"));
  EXPECT_THAT(result.out, HasSubstr("ZeroOneAdam (cuda)"));
}

TEST_F(CudaAbsent, DoesNotKeepAConfigurationFromBeingChecked) {
  const ProcessResult result = run_capstan(folder_, {"validate", "config.json", "--set", "capstan.run.device=cuda"});

  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
}

TEST_F(CudaAbsent, SaysThatAnOptimizerUpdatesInHostMemory) {
  const ProcessResult result = run_capstan(folder_, {"validate", "config.json", "--device", "cuda", "--set",
                                                     "optimizer.type=SparseAdam", "--set", "sparse_gradients=true"});

  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(
      result.out + result.err,
      HasSubstr("optimizer.type: no plugin provides an optimizer 'SparseAdam' for cuda, so that it updates in host "
                "memory"));
}

#else

TEST_F(CudaAbsent, SaysThatItWasNotBuilt) {
  const ProcessResult result = train({"--device", "cuda"});

  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err, HasSubstr("capstan.run.device: no plugin provides an accelerator 'cuda'."));
}

#endif

}  // namespace
}  // namespace capstan::cli
