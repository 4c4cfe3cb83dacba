// What a plan says, against what training then takes and sends.

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <cmath>
#include <cstdint>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "core/engine/deferred_model.hpp"
#include "core/engine/engine.hpp"
#include "core/engine/planned_run.hpp"
#include "core/engine/progress_report.hpp"
#include "core/memory/tensor_handle.hpp"
#include "tests/support/ranks.hpp"

namespace capstan {
namespace {

/// A model of much memory and little work: the loss reads one row of each matrix, and has a gradient for all of it.
struct WideModel {
  std::vector<NamedTensor> parameters;

  WideModel(int count, std::int64_t rows) {
    for (int i = 0; i < count; ++i) {
      parameters.push_back({"matrix" + std::to_string(i), at::full({rows, 1000}, 0.01).requires_grad_()});
    }
  }

  static const capstan_model& table() {
    static const capstan_model instance = [] {
      capstan_model table{};
      table.struct_size = sizeof table;
      table.visit = [](void* self, const capstan_visitor* visitor, capstan_error*) {
        for (const NamedTensor& parameter : static_cast<WideModel*>(self)->parameters) {
          visitor->tensor(visitor->ctx, as_str(parameter.name), handle_of(parameter.tensor), CAPSTAN_ROLE_PARAMETER);
        }
        return CAPSTAN_OK;
      };
      table.forward = [](void* self, capstan_batch*, capstan_tensor* loss, capstan_error*) {
        at::Tensor sum = at::zeros({});
        for (const NamedTensor& parameter : static_cast<WideModel*>(self)->parameters) {
          const at::Tensor row = parameter.tensor.select(0, 0).to(at::kFloat);
          sum = sum + (row * row).sum();
        }
        *loss = reinterpret_cast<capstan_tensor>(new at::Tensor(sum));
        return CAPSTAN_OK;
      };
      table.training = [](void*, int, capstan_error*) { return CAPSTAN_OK; };
      return table;
    }();
    return instance;
  }
};

struct Case {
  int ranks, stage;
  const char* more;
};

void PrintTo(const Case& one, std::ostream* out) { *out << one.ranks << " ranks, stage " << one.stage << one.more; }

class Planned : public testing::TestWithParam<Case> {};

/// Sets the peak that the kernel tells back to what is resident now.
void forget_peak() { std::ofstream("/proc/self/clear_refs") << "5"; }

std::uint64_t sent(Communicator& communicator, const std::string& collective) {
  const auto found = communicator.log().traffic().find(collective);
  return found == communicator.log().traffic().end() ? 0 : found->second.bytes;
}

/// Trains a model of so many matrices, and holds the plan against what that took.
void train(Communicator& communicator, const Case& one, int matrices, std::int64_t rows, bool check) {
  PluginIndex plugins;
  ConfigContext context;
  context.world_size = communicator.size();
  const Config config = load_config({R"({"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2,
    "steps_per_print": null, "optimizer": {"type": "AdamW", "params": {"lr": 0.001}},
    "zero_optimization": {"reduce_bucket_size": 2000000, "stage": )" +
                                         std::to_string(one.stage) + "}" + one.more + "}",
                                     "test", false},
                                    context, plugins);
  const std::uint64_t before = host_memory().resident;
  forget_peak();
  std::unique_ptr<WideModel> wide;
  const auto build = [&] {
    wide = std::make_unique<WideModel>(matrices, rows);
    return Model(
        &WideModel::table(), wide.get(), [](void*) {}, "wide");
  };
  Model model = one.stage == 3 ? without_values(build) : build();
  const PlannedRun run = planned_run(model, config, plugins, communicator.size());
  const MemoryPlan plan = plan_memory(run, configured_choice(config.zero));
  {
    Engine engine(std::move(model), config, plugins, {&communicator, [](Communicator*) {}});
    const auto step = [&] { engine.train_batch([] { return Batch{}; }); };
    step();
    std::map<std::string, std::uint64_t> expected;
    for (const PlannedTraffic& row : plan_traffic(run, one.stage)) {
      expected[row.collective] += sent(communicator, row.collective) * (expected[row.collective] == 0 ? 1 : 0) +
                                  static_cast<std::uint64_t>(row.bytes);
    }
    step();
    for (const auto& [collective, bytes] : expected) {
      if (communicator.rank() > 0) continue;
      EXPECT_EQ(sent(communicator, collective), bytes) << collective;
    }
    step();
  }
  if (!check) return;
  const auto took = static_cast<double>(host_memory().peak - before);
  const auto planned = static_cast<double>(plan.peak(Place::kMemory));
  EXPECT_GE(took, 0.95 * planned);
  EXPECT_LE(took, 1.05 * planned);
}

TEST_P(Planned, IsWhatTrainingTakesAndSends) {
  const Case one = GetParam();
  const auto body = [one](Communicator& communicator) {
    // What the C library's heap keeps of buffers that come and go, up to 64 MB, depends on the timing of the threads.
    // Memory that was mapped for one buffer goes back with it.
    mallopt(M_MMAP_THRESHOLD, 64 << 10);
    train(communicator, one, 2, 10, /*check=*/false);  // what the first steps of a process touch for ever
    train(communicator, one, 100, 500, /*check=*/true);
  };
  test::expect_on_ranks(one.ranks, body);
}

constexpr const char* kBf16 = R"(, "bf16": {"enabled": true})";
constexpr const char* kBf16SummedInFp32 = R"(, "bf16": {"enabled": true}, "data_types": {"grad_accum_dtype": "fp32"})";

INSTANTIATE_TEST_SUITE_P(Stages, Planned,
                         testing::Values(Case{1, 0, ""}, Case{1, 0, kBf16}, Case{1, 0, kBf16SummedInFp32},
                                         Case{2, 0, ""}, Case{2, 1, ""}, Case{2, 2, ""}, Case{2, 0, kBf16},
                                         Case{2, 1, kBf16SummedInFp32}, Case{2, 2, kBf16}, Case{2, 3, ""},
                                         Case{2, 3, kBf16}));

}  // namespace
}  // namespace capstan
