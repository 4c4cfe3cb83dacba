// A checkpoint of Capstan that torch.distributed.checkpoint has written anew in two processes is what it was, and
// trains on to the bit.

#include "core/checkpoint/torch_dcp/read_torch_dcp.hpp"

#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>

#include "core/checkpoint/checkpoint.hpp"
#include "core/checkpoint/checkpoint_diff.hpp"
#include "core/checkpoint/checkpoint_verify.hpp"
#include "core/errors.hpp"
#include "tests/core/data/temporary_folder.hpp"
#include "tests/core/engine/small_model.hpp"
#include "tests/support/readers.hpp"

namespace capstan {
namespace {

using testing::HasSubstr;
using testing_support::SmallRun;

constexpr const char* kConfig = R"({"train_batch_size": 8, "steps_per_print": null,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.05, "weight_decay": 0.01}}})";

class ReadTorchDcp : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (test::reader_python().empty()) return;
    folder_ = std::make_unique<test::TemporaryFolder>();
    SmallRun run(kConfig);
    run.steps(2);
    run.engine.save_checkpoint(*folder_ / "own", "global_step2");
    const std::string command = test::reader_python() +
                                " -W ignore " CAPSTAN_TEST_SOURCE_DIR "/tests/core/checkpoint/torch_dcp/write_dcp.py " +
                                (*folder_ / "own").string() + " global_step2 " + folder_->path().string();
    written_ = std::system(command.c_str()) == 0;
  }
  static void TearDownTestSuite() { folder_.reset(); }

  void SetUp() override {
    if (test::reader_python().empty()) GTEST_SKIP() << test::kNoReaders;
    ASSERT_TRUE(written_) << "write_dcp.py has failed";
  }

  static std::unique_ptr<test::TemporaryFolder> folder_;
  static bool written_;
};

std::unique_ptr<test::TemporaryFolder> ReadTorchDcp::folder_;
bool ReadTorchDcp::written_ = false;

TEST_F(ReadTorchDcp, HoldsTheParametersAndStatesThatWereSaved) {
  CheckpointContents own = read_checkpoint(*folder_ / "own", "global_step2");
  CheckpointContents theirs = read_checkpoint(folder_->path(), "dcp");
  // Who does not know the model cannot tell buffers from parameters.
  for (CheckpointTensor& tensor : own.tensors) {
    if (tensor.state == "buffer") tensor.state = "param";
  }
  const CheckpointDiff diff = compare_checkpoints(own, theirs);
  EXPECT_EQ(diff.equal_tensors, 4 * 4 + 2);  // values, two moments and the step of 4 parameters; one frozen, one buffer
  for (const TensorDifference& one : diff.tensors) ADD_FAILURE() << one.state << " of " << one.parameter;
  EXPECT_EQ(theirs.state.at("written_by"), Json("torch.distributed.checkpoint"));
  EXPECT_EQ(theirs.state.at("client_state"), Json::parse(R"({"step": 2, "note": "grüße"})"));
  EXPECT_EQ(theirs.state.at("groups").as_array()[0].at("base_lr"), Json(0.05));
  EXPECT_EQ(theirs.state.at("world_size"), Json(2));
  EXPECT_EQ(theirs.state.at("notes").as_array()[0],
            Json("'odd' cannot be read (an object of __main__.Odd) and is left out."));
}

TEST_F(ReadTorchDcp, TrainsOnToTheBit) {
  SmallRun straight(kConfig);
  straight.steps(2);
  SmallRun resumed(kConfig, /*weights_seed=*/11);
  resumed.engine.load_checkpoint(folder_->path(), "dcp");
  EXPECT_EQ(resumed.engine.progress().global_steps, 2);
  // The files do not count samples: two steps of the batch.
  EXPECT_EQ(resumed.engine.progress().global_samples, 16);
  resumed.next_batch = 2;
  for (int i = 0; i < 3; ++i) EXPECT_EQ(resumed.step(), straight.step());
  EXPECT_TRUE(at::equal(resumed.model.parameters[0].tensor, straight.model.parameters[0].tensor));
  EXPECT_TRUE(at::equal(resumed.model.buffer, straight.model.buffer));
}

TEST_F(ReadTorchDcp, SaysThatStatesWithoutNamesAreLeftOut) {
  const Json notes = read_checkpoint_state(folder_->path(), "unnamed").at("notes");
  EXPECT_THAT(notes.dump(), HasSubstr("states have numbers in place of names, and are left out. Save with "
                                      "torch.distributed.checkpoint.state_dict.get_state_dict()"));
  SmallRun run(kConfig, /*weights_seed=*/11);
  run.engine.load_checkpoint(folder_->path(), "unnamed", nullptr, {.optimizer_states = false});
  SmallRun straight(kConfig);
  straight.steps(2);
  EXPECT_TRUE(at::equal(run.model.parameters[0].tensor, straight.model.parameters[0].tensor));
}

TEST_F(ReadTorchDcp, IsVerifiedWithWhatARunLeavesOut) {
  EXPECT_NO_THROW(verify_checkpoint(folder_->path(), "unnamed"));
  EXPECT_NO_THROW(read_checkpoint(folder_->path(), "left_out"));
  EXPECT_THAT([&] { verify_checkpoint(folder_->path(), "left_out"); },
              testing::ThrowsMessage<RuntimeFault>(HasSubstr("does not fit its checksum")));
}

TEST_F(ReadTorchDcp, WhatIsDamagedIsNamedWithItsFile) {
  const Json messages = Json::parse(test::read_bytes(*folder_ / "damaged/messages.json"));
  EXPECT_GE(messages.size(), 13u);
  for (const auto& [name, message] : messages.as_object()) {
    testing::internal::CaptureStdout();
    std::string fault;
    try {
      read_checkpoint(*folder_ / "damaged", name);
    } catch (const RuntimeFault& refusal) {
      fault = refusal.what();
    }
    EXPECT_EQ(testing::internal::GetCapturedStdout(), "") << name << ": its pickle was run";
    EXPECT_THAT(fault, HasSubstr(message.as_string())) << name;
    EXPECT_THAT(fault, HasSubstr((*folder_ / "damaged").string() + "/" + name)) << name;
  }
}

}  // namespace
}  // namespace capstan
