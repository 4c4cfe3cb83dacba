// What a pass of shapes says, against what training then keeps and sends.

#include "core/engine/planned_pass.hpp"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "core/engine/planned_run.hpp"
#include "core/memory/shapes_only.hpp"
#include "tests/probes/probe_run.hpp"
#include "tests/support/counting_allocator.hpp"
#include "tests/support/ranks.hpp"

namespace capstan {
namespace {

using testing::CountingAllocator;
using ::testing::HasSubstr;
using testing::ProbeRun;

const std::string kModel = R"("layers": 6, "d": 128, "heads": 2, "seq": 64)";

PlannedPass pass_of(const Config& config, const PluginIndex& plugins, bool recompute, PlannedRun* run = nullptr) {
  Registry registry(plugins);
  const ComponentChoice& choice = *config.run.model;
  std::optional<Model> model;
  {
    Json params = choice.params;
    params["init"] = "normal";  // formulas are written by data_ptr()
    const ShapesOnly shapes_only;
    model.emplace(registry.create(choice.where, "model", choice.type, params, model_host()));
  }
  if (run != nullptr) *run = planned_run(*model, config, plugins, config.batch.world_size);
  const PlannedPass pass = follow_pass(*model, config, plugins, recompute);
  if (run != nullptr) run->uses = pass.uses;
  return pass;
}

/// A run's plan says what its forward keeps, to one part in twenty. `capstan`: members of that section.
void expect_kept_as_planned(const std::string& capstan, const std::string& model) {
  ProbeRun run(capstan, "", model);
  run.steps(2);
  std::int64_t kept = 0;
  {
    const CountingAllocator counting;
    Batch batch = run.batch(0);
    const std::int64_t before = CountingAllocator::living;
    const at::Tensor loss = run.engine->forward(batch);
    kept = CountingAllocator::living - before;
  }
  const PluginIndex plugins = PluginIndex::scan({});
  const PlannedPass planned = pass_of(run.engine->config(), plugins, capstan.find("recompute") != std::string::npos);

  EXPECT_EQ(planned.unknown, "");
  EXPECT_GT(planned.kept_bytes, 100'000);
  EXPECT_NEAR(static_cast<double>(planned.kept_bytes), static_cast<double>(kept), 0.05 * static_cast<double>(kept));
  EXPECT_GT(planned.peak_bytes, planned.kept_bytes);
}

/// The bytes that forward keeps, without and with recomputation.
class PlannedPassOf : public ::testing::TestWithParam<const char*> {};

TEST_P(PlannedPassOf, CountsWhatForwardKeepsForBackward) { expect_kept_as_planned(GetParam(), kModel); }

INSTANTIATE_TEST_SUITE_P(, PlannedPassOf,
                         ::testing::Values("", R"("recompute": {"check": "never"})",
                                           R"("recompute": {"every": 3, "check": "never"})"));

// The head's weight has a gradient of 8 MiB from forward on, its logits would be 16 MiB.
TEST(PlannedPass, CountsALossInChunks) {
  expect_kept_as_planned(R"("run": {"loss_chunk": 1000000})", kModel + R"(, "vocab": 16384)");
}

TEST(PlannedPass, KnowsInWhichOrderParametersComeWithRecomputation) {
  for (const char* zero : {R"("stage3_max_reuse_distance": 0)", R"("stage3_max_reuse_distance": 30000)"}) {
    SCOPED_TRACE(zero);
    test::expect_on_ranks(2, [&](Communicator& communicator) {
      const std::shared_ptr<Communicator> all(&communicator, [](Communicator*) {});
      ProbeRun run(R"("recompute": {"check": "never"})",
                   R"("zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0, )" +
                       std::string(zero) + R"(, "stage3_prefetch_bucket_size": 20000})",
                   kModel, all);
      PlannedRun planned;
      const PluginIndex plugins = PluginIndex::scan({});
      const PlannedPass pass = pass_of(run.engine->config(), plugins, true, &planned);
      ASSERT_EQ(pass.unknown, "");
      std::uint64_t expected = 0;
      for (const PlannedTraffic& row : plan_traffic(planned, 3)) {
        if (row.collective == "all_gather") expected += static_cast<std::uint64_t>(row.bytes);
      }
      const auto gathered = [&] { return communicator.log().traffic().at("all_gather").bytes; };
      run.steps(2);
      const auto before = gathered();
      run.steps(1);
      if (communicator.rank() == 0) {
        EXPECT_EQ(gathered() - before, expected);
      }
    });
  }
}

TEST(PlannedPass, SaysWhyThereIsNone) {
  ProbeRun run("", R"("torch_autocast": {"enabled": true, "dtype": "bfloat16"})", kModel);
  const PluginIndex plugins = PluginIndex::scan({});
  EXPECT_THAT(pass_of(run.engine->config(), plugins, false).unknown, HasSubstr("autocast"));
}

}  // namespace
}  // namespace capstan
