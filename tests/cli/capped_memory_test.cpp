// Processes that may take so much memory and no more.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "tests/cli/training_folder.hpp"
#include "tests/support/process.hpp"

namespace capstan::test {
namespace {

using testing::HasSubstr;

class CappedMemory : public testing::Test {
 protected:
  // fp32 with AdamW: 16 bytes for each of 31.8 million parameters, 509 MB.
  CappedMemory() {
    folder_.write("capped.json", R"({"train_micro_batch_size_per_gpu": 1, "steps_per_print": 1,
      "gradient_clipping": 1.0, "optimizer": {"type": "AdamW", "params": {"lr": 0.001}},
      "zero_optimization": {"stage": 3, "reduce_bucket_size": 2000000, "stage3_max_reuse_distance": 0,
                            "stage3_prefetch_bucket_size": 2000000},
      "capstan": {"model": {"type": "gpt", "params": {"layers": 10, "d": 512, "heads": 8, "seq": 32}}}})");
  }

  /// Trains two steps in processes each of which may have so many MB of memory of its own (RLIMIT_DATA).
  ProcessResult train(int processes, int megabytes, int stage) {
    const std::string limit = "ulimit -d " + std::to_string(megabytes * 1000) + "; exec \"$@\"";
    std::vector<std::string> words{
        "/bin/sh", "-c", limit, "sh", CAPSTAN_TEST_BUILD_DIR "/bin/capstan", "launch", "-n", std::to_string(processes)};
    for (const std::string& word :
         folder_.train({"--steps", "2", "--set", "zero_optimization.stage=" + std::to_string(stage)}, "capped.json")) {
      words.push_back(word);
    }
    // Blocks above it go back to the system when they are freed. Else what the heap keeps of buffers that come and go
    // depends on the timing of threads.
    return run_process(words, {.environment = {"MALLOC_MMAP_THRESHOLD_=524288"}});
  }

  TrainingFolder folder_;
};

struct Cap {
  int processes, megabytes;
};

TEST_F(CappedMemory, HoldsAtStage3WhatItCannotHoldWhole) {
  for (const Cap& cap : {Cap{2, 500}, Cap{4, 400}}) {
    const auto parts = train(cap.processes, cap.megabytes, 3);
    EXPECT_EQ(parts.exit_code, 0) << parts.err;
    EXPECT_THAT(parts.out, HasSubstr("trained 2 steps"));
    const auto whole = train(cap.processes, cap.megabytes, 0);
    EXPECT_NE(whole.exit_code, 0) << cap.processes;
    EXPECT_THAT(whole.err, HasSubstr("out of memory"));
  }
}

TEST_F(CappedMemory, SaysSoWhereverTheMemoryEnds) {
  // From what the dynamic loader alone takes to what training takes: LibTorch's initialisation fails, then its threads.
  int too_small = 0;
  ProcessResult result;
  for (int megabytes = 30; megabytes <= 400; megabytes += 15) {
    const std::string limit = "ulimit -c 0; ulimit -d " + std::to_string(megabytes * 1000) + "; exec \"$@\"";
    std::vector<std::string> words{"/bin/sh", "-c", limit, "sh", CAPSTAN_TEST_BUILD_DIR "/bin/capstan"};
    // OpenMP's library ends the process itself, in its own words, when it gets no threads.
    for (const std::string& word : folder_.train({"--steps", "1"})) words.push_back(word);
    result = run_process(words, {.environment = {"OMP_NUM_THREADS=1"}});
    if (result.exit_code == 0) break;
    ++too_small;
    EXPECT_EQ(result.exit_code, 1) << megabytes << " MB: " << result.err;
    EXPECT_THAT(result.err, HasSubstr("capstan: error: out of memory, or of what 'ulimit' lets this process have."))
        << megabytes << " MB";
  }
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_GE(too_small, 2);
}

TEST_F(CappedMemory, ResumesWhereItTrained) {
  // 7.9 million parameters: training takes 16 bytes of each; resuming takes 12, and the 12 of the mapped checkpoint
  // are the file's.
  const auto run = [&](const char* steps, const std::vector<std::string>& more) {
    std::vector<std::string> words{"/bin/sh", "-c", "ulimit -d $LIMIT; exec \"$@\"", "sh",
                                   CAPSTAN_TEST_BUILD_DIR "/bin/capstan"};
    for (const std::string& word :
         folder_.train({"--steps", steps, "--save", folder_.path_of("ck"), "--set", "capstan.model.params.d=256"},
                       "capped.json")) {
      words.push_back(word);
    }
    words.insert(words.end(), more.begin(), more.end());
    return run_process(words, {.environment = {"OMP_NUM_THREADS=1", "LIMIT=250000"}});
  };
  const ProcessResult trained = run("1", {});
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  const ProcessResult resumed = run("2", {"--resume", folder_.path_of("ck")});
  EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_THAT(resumed.out, HasSubstr("trained 1 step "));
}

/// The rows of a run's losses, with all their digits.
std::string losses(const TrainingFolder& folder, const std::string& job) {
  return read_bytes(folder / (job + "/Train_Samples_train_loss.csv"));
}

TEST_F(CappedMemory, TrainsSavesAndResumesOnADiskWhatItCannotHold) {
  std::filesystem::create_directory(folder_ / "nvme");
  const std::string nvme = R"({"device": "nvme", "max_in_cpu": 0, "nvme_path": ")" + folder_.path_of("nvme") + "\"}";
  const std::string states = R"({"device": "nvme", "nvme_path": ")" + folder_.path_of("nvme") + "\"}";
  const auto run = [&](const char* limit, const std::string& job, std::vector<std::string> more) {
    std::vector<std::string> words{"/bin/sh", "-c", "ulimit -d $LIMIT; exec \"$@\"", "sh",
                                   CAPSTAN_TEST_BUILD_DIR "/bin/capstan"};
    more.insert(more.end(),
                {"--set", "zero_optimization.sub_group_size=1000000", "--set", "csv_monitor.enabled=true", "--set",
                 "csv_monitor.output_path=" + folder_.path().string(), "--set", "csv_monitor.job_name=" + job});
    for (const std::string& word : folder_.train(more, "capped.json")) words.push_back(word);
    return run_process(words, {.environment = {"OMP_NUM_THREADS=1", std::string("LIMIT=") + limit}});
  };
  const auto offloaded = [&](const std::string& job, std::vector<std::string> more) {
    more.insert(more.end(), {"--set", "zero_optimization.offload_optimizer=" + states, "--set",
                             "zero_optimization.offload_param=" + nvme});
    return run("250000", job, more);
  };
  const ProcessResult whole = run("250000", "whole", {"--steps", "1"});
  EXPECT_NE(whole.exit_code, 0);
  EXPECT_THAT(whole.err, HasSubstr("out of memory"));
  const ProcessResult trained = offloaded("first", {"--steps", "2", "--save", folder_.path_of("ck")});
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  const ProcessResult resumed = offloaded("second", {"--steps", "3", "--resume", folder_.path_of("ck")});
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_THAT(resumed.out, HasSubstr("trained 1 step "));
  EXPECT_TRUE(std::filesystem::is_empty(folder_ / "nvme"));

  const ProcessResult memory = run("unlimited", "memory", {"--steps", "3"});
  ASSERT_EQ(memory.exit_code, 0) << memory.err;
  const std::string second = losses(folder_, "second");
  EXPECT_EQ(losses(folder_, "first") + second.substr(second.find('\n') + 1), losses(folder_, "memory"));
}

}  // namespace
}  // namespace capstan::test
