// Runs whose state is on a disk, by real processes.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "tests/cli/training_folder.hpp"
#include "tests/support/process.hpp"

namespace capstan::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class Offload : public testing::Test {
 protected:
  Offload() { std::filesystem::create_directory(folder_.path_of("nvme")); }

  /// Trains two steps of the folder's default model; `zero`: members of zero_optimization, `more`: of capstan.
  ProcessResult train(const std::string& zero, const std::string& more, const std::string& limits = "true") {
    folder_.write("offload.json", R"({"train_micro_batch_size_per_gpu": 1,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.001}}, "zero_optimization": {)" +
                                      zero + R"(},
        "capstan": {"model": {"type": "mlp", "params": {"d": 8, "hidden": 16, "seq": 16}})" +
                                      more + "}}");
    std::vector<std::string> words{"/bin/sh", "-c", limits + "; exec \"$@\"", "sh",
                                   CAPSTAN_TEST_BUILD_DIR "/bin/capstan"};
    for (const std::string& word : folder_.train({"--steps", "2"}, "offload.json")) words.push_back(word);
    return run_process(words, {.environment = {"OMP_NUM_THREADS=1"}});
  }
  std::string device(const std::string& more = "") const {
    return R"({"device": "nvme", "nvme_path": ")" + folder_.path_of("nvme") + "\"" + more + "}";
  }
  bool is_empty() const { return std::filesystem::is_empty(folder_.path_of("nvme")); }

  TrainingFolder folder_;
};

TEST_F(Offload, BeginsWithALineOfEachStoreAndLeavesNothingBehind) {
  const auto run = train(
      R"("stage": 3, "offload_optimizer": )" + device() + R"(, "offload_param": )" + device(R"(, "max_in_cpu": 0)"),
      "");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out, AllOf(HasSubstr("offload: optimizer states and parameters on nvme (" + folder_.path_of("nvme")),
                             HasSubstr("; staging "), HasSubstr("trained 2 steps")));
  EXPECT_TRUE(is_empty());
}

TEST_F(Offload, SaysBeforeTheFirstStepThatThereIsNoRoom) {
  const auto run = train(R"("stage": 3, "offload_optimizer": )" + device(), "", "ulimit -f 100");
  EXPECT_EQ(run.exit_code, 1) << run.out;
  EXPECT_THAT(run.err, AllOf(HasSubstr("offload 'nvme': nvme_path '" + folder_.path_of("nvme") + "': no room"),
                             HasSubstr("It was to hold optimizer states of tile 0.")));
  EXPECT_THAT(run.out, testing::Not(HasSubstr("trained")));
  EXPECT_TRUE(is_empty());
}

/// A small store of somebody else's keeps parameters as well as the bundled ones do.
TEST_F(Offload, KeepsParametersOnAnotherStore) {
  const auto run = train(R"("stage": 3, "stage3_param_persistence_threshold": 0)",
                         R"(, "offload": {"parameters": {"type": "file_state", "params": {"folder": ")" +
                             folder_.path_of("nvme") + R"(", "memory": 100000000}}},
                             "plugins": {"path": [")" CAPSTAN_TEST_BUILD_DIR R"(/tests/probe_plugins"]})");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const auto losses = [](const std::string& out) { return out.substr(out.find(": loss ")); };
  EXPECT_EQ(losses(run.out), losses(train(R"("stage": 0)", "").out));
  EXPECT_FALSE(is_empty()) << "it keeps files";
}

}  // namespace
}  // namespace capstan::test
