// What a pass of shapes says, against what training then keeps and sends.

#include "core/engine/planned_pass.hpp"

#include <c10/core/CPUAllocator.h>
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <atomic>

#include "core/engine/planned_run.hpp"
#include "core/memory/shapes_only.hpp"
#include "tests/probes/probe_run.hpp"
#include "tests/support/ranks.hpp"

namespace capstan {
namespace {

using ::testing::HasSubstr;
using testing::ProbeRun;

const std::string kModel = R"("layers": 6, "d": 128, "heads": 2, "seq": 64)";

/// LibTorch's allocator, with the bytes of tensors that live.
class CountingAllocator final : public c10::Allocator {
 public:
  CountingAllocator() : others_(c10::GetCPUAllocator()) { c10::SetCPUAllocator(this); }
  ~CountingAllocator() override { c10::SetCPUAllocator(others_); }
  at::DataPtr allocate(std::size_t bytes) override {
    struct Block {
      at::DataPtr memory;
      std::size_t bytes;
    };
    auto* block = new Block{others_->allocate(bytes), bytes};
    living += static_cast<std::int64_t>(bytes);
    return {block->memory.get(), block,
            [](void* context) {
              const std::unique_ptr<Block> owned(static_cast<Block*>(context));
              living -= static_cast<std::int64_t>(owned->bytes);
            },
            at::Device(at::kCPU)};
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { others_->copy_data(to, from, bytes); }
  static inline std::atomic<std::int64_t> living = 0;

 private:
  c10::Allocator* others_;
};

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

/// What forward keeps, without and with recomputation.
class PlannedPassOf : public ::testing::TestWithParam<const char*> {};

TEST_P(PlannedPassOf, CountsWhatForwardKeepsForBackward) {
  const std::string recompute = GetParam();
  ProbeRun run(recompute, "", kModel);
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
  const PlannedPass planned = pass_of(run.engine->config(), plugins, !recompute.empty());

  EXPECT_EQ(planned.unknown, "");
  EXPECT_GT(planned.kept_bytes, 100'000);
  EXPECT_NEAR(static_cast<double>(planned.kept_bytes), static_cast<double>(kept), 0.05 * static_cast<double>(kept));
  EXPECT_GT(planned.peak_bytes, planned.kept_bytes);
}

INSTANTIATE_TEST_SUITE_P(, PlannedPassOf,
                         ::testing::Values("", R"("recompute": {"check": "never"})",
                                           R"("recompute": {"every": 3, "check": "never"})"));

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
