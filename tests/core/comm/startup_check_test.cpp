#include "core/comm/startup_check.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/errors.hpp"
#include "tests/support/ranks.hpp"

namespace capstan {
namespace {

using testing::HasSubstr;

RunIdentity facts() {
  RunIdentity facts;
  facts.libtorch = "2.11.0 (build ab)";
  facts.model = "gpt";
  facts.parameters = {"a.weight float32 [4, 2]", "a.bias float32 [4]"};
  facts.config = Json::parse(R"({"optimizer": {"params": {"lr": 0.001}}, "train_batch_size": 8})");
  return facts;
}

TEST(StartupCheck, NamesTheKeyThatDiffers) {
  RunIdentity other = facts();
  EXPECT_EQ(difference(facts(), 0, other, 1), "");
  other.config = Json::parse(R"({"optimizer": {"params": {"lr": 0.002}}, "train_batch_size": 8})");
  EXPECT_EQ(difference(facts(), 0, other, 1),
            "the processes are not about to do the same: configuration key optimizer.params.lr is 0.001 on rank 0 and "
            "0.002 on rank 1. Start all of them with the same program, configuration and arguments.");
}

TEST(StartupCheck, NamesModelParametersOrderAndLibTorch) {
  RunIdentity other = facts();
  std::swap(other.parameters[0], other.parameters[1]);
  EXPECT_THAT(difference(facts(), 0, other, 2),
              HasSubstr("parameter 0 is a.weight float32 [4, 2] on rank 0 and a.bias float32 [4] on rank 2."));
  other = facts();
  other.parameters.pop_back();
  EXPECT_THAT(difference(facts(), 0, other, 2),
              HasSubstr("parameter 1 is a.bias float32 [4] on rank 0 and none on rank 2."));
  other = facts();
  other.libtorch = "2.10.0 (build cd)";
  EXPECT_THAT(difference(facts(), 0, other, 3),
              HasSubstr("LibTorch is 2.11.0 (build ab) on rank 0 and 2.10.0 (build cd) on rank 3."));
  other = facts();
  other.model = "mlp";
  EXPECT_THAT(difference(facts(), 0, other, 3), HasSubstr("the model is gpt on rank 0 and mlp on rank 3."));
  other = facts();
  other.config.erase("train_batch_size");
  EXPECT_THAT(difference(facts(), 0, other, 3),
              HasSubstr("configuration key train_batch_size is 8 on rank 0 and not there on rank 3."));
}

TEST(StartupCheck, StopsAllRanksWithOneSentence) {
  test::expect_on_ranks(3, [](Communicator& communicator) {
    RunIdentity mine = facts();
    check_same_run(communicator, mine);
    if (communicator.rank() == 2) mine.model = "mlp";
    try {
      check_same_run(communicator, mine);
      ADD_FAILURE() << "nobody noticed";
    } catch (const RuntimeFault& fault) {
      EXPECT_THAT(fault.what(), HasSubstr("the model is gpt on rank 0 and mlp on rank 2."));
    }
  });
}

}  // namespace
}  // namespace capstan
