// Processes that may take so much memory and no more.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
    return run_process(words);
  }

  TrainingFolder folder_;
};

struct Cap {
  int processes, megabytes;
};

TEST_F(CappedMemory, HoldsAtStage3WhatItCannotHoldWhole) {
  for (const Cap& cap : {Cap{2, 500}, Cap{4, 350}}) {
    const auto parts = train(cap.processes, cap.megabytes, 3);
    EXPECT_EQ(parts.exit_code, 0) << parts.err;
    EXPECT_THAT(parts.out, HasSubstr("trained 2 steps"));
    const auto whole = train(cap.processes, cap.megabytes, 0);
    EXPECT_NE(whole.exit_code, 0) << cap.processes;
    EXPECT_THAT(whole.err, HasSubstr("out of memory"));
  }
}

}  // namespace
}  // namespace capstan::test
