// Runs with compressions that lose a forward, a step or their process go on as if they had not.
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "core/checkpoint/checkpoint.hpp"
#include "core/errors.hpp"
#include "tests/core/data/temporary_folder.hpp"
#include "tests/plugins/compression/quantized_net.hpp"
#include "tests/support/ranks.hpp"

namespace capstan::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr const char* kStages[] = {R"({"stage": 0})", R"({"stage": 2})",
                                   R"({"stage": 3, "stage3_param_persistence_threshold": 0})"};
constexpr const char* kTwoMicroBatches = R"(, "gradient_accumulation_steps": 2)";

std::shared_ptr<Communicator> shared(Communicator& communicator) {
  return {&communicator, [](Communicator*) {}};
}

/// A folder that all ranks know; rank 0 has made it.
std::string shared_folder(Communicator& communicator, std::optional<test::TemporaryFolder>& folder) {
  if (communicator.rank() == 0) folder.emplace();
  return communicator.all_gather_text("test: folder", folder ? folder->path().string() : "").front();
}

/// What the compressions of a run would save now.
std::string states_of(NetRun& run, const std::string& dir) {
  run.engine.save_checkpoint(dir, "states");
  return read_checkpoint(dir, "states").state.at("compressions").dump();
}

/// A step of two micro-batches, each of which fails so many times before it succeeds.
double step_of_failures(NetRun& run, const std::vector<int>& failures) {
  const auto next = run.batches();
  double sum = 0;
  for (const int times : failures) {
    const Batch batch = next();
    for (run.net.fails = times; run.net.fails > 0;) {
      Batch lost = batch;
      EXPECT_THAT([&] { run.engine.forward(lost); }, ThrowsMessage<PluginError>(HasSubstr("out of ideas")));
    }
    Batch kept = batch;
    const at::Tensor loss = run.engine.forward(kept);
    sum += loss.item<double>();
    run.engine.backward(loss);
    run.engine.step();
  }
  return sum;
}

TEST(QuantizedRuns, CountAMicroBatchOnceThatWasTriedAgain) {
  test::expect_on_ranks(2, [](Communicator& communicator) {
    std::optional<test::TemporaryFolder> folder;
    const std::string dir = shared_folder(communicator, folder);
    for (const char* zero : kStages) {
      const std::string config = net_config(2, zero, kTwoMicroBatches);
      NetRun straight(config, shared(communicator)), run(config, shared(communicator));
      straight.step();
      run.step();
      EXPECT_EQ(step_of_failures(run, {1, 2}), step_of_failures(straight, {0, 0})) << zero;
      EXPECT_EQ(states_of(run, dir), states_of(straight, dir)) << zero;
      EXPECT_EQ(run.step(), straight.step()) << zero;
      EXPECT_TRUE(at::equal(run.values(), straight.values())) << zero;
      EXPECT_EQ(run.evaluated(), straight.evaluated()) << zero;
    }
    communicator.all_gather_text("test: end", "");  // the folder ends with rank 0
  });
}

}  // namespace
}  // namespace capstan::testing
