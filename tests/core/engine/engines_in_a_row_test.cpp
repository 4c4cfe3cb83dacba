// Several engines in one process, one after the other, where several processes train: notebooks and sweeps.

#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/comm/rendezvous.hpp"
#include "core/errors.hpp"
#include "tests/core/zero/mixed_model.hpp"
#include "tests/support/ranks.hpp"

namespace capstan {
namespace {

using test::MixedRun;
using testing::HasSubstr;

constexpr const char* kConfig = R"({"train_micro_batch_size_per_gpu": 3, "steps_per_print": null,
  "optimizer": {"type": "AdamW"}, "zero_optimization": {"stage": 1, "overlap_comm": true}})";

/// What capstan::initialize does: each engine connects the processes anew.
std::shared_ptr<Communicator> connected() { return Communicator::connect(read_rendezvous(process_environment()), {}); }

TEST(EnginesInARow, TrainAlikeInTwoProcesses) {
  test::expect_on_ranks(2, [](Communicator&) {
    std::vector<std::vector<double>> losses;
    for (int i = 0; i < 3; ++i) losses.push_back(MixedRun(kConfig, connected()).steps(3));
    EXPECT_EQ(losses[1], losses[0]);
    EXPECT_EQ(losses[2], losses[0]);
  });
}

TEST(EnginesInARow, GoOnAfterOneThatFailedOnAllRanks) {
  test::expect_on_ranks(2, [](Communicator&) {
    const auto train = [](bool fail) {
      MixedRun run(kConfig, connected());
      run.step();
      if (fail) throw RuntimeFault("the data has ended");
      return run.step();
    };
    const double before = train(false);
    EXPECT_THROW(train(true), RuntimeFault);
    EXPECT_EQ(train(false), before);
  });
}

TEST(EnginesInARow, GoOnAfterACollectiveThatFailed) {
  test::expect_on_ranks(2, [](Communicator& first) {
    const std::string mine = first.rank() == 0 ? "step 1, norm" : "save";
    EXPECT_THROW(first.all_gather_text(mine, ""), RuntimeFault);
    EXPECT_GT(MixedRun(kConfig, connected()).step(), 0);
  });
}

}  // namespace
}  // namespace capstan
