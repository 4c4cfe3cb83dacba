// What a plan says, against what training then takes and sends.

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <cmath>
#include <cstdint>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/engine/engine.hpp"
#include "core/engine/planned_run.hpp"
#include "core/engine/progress_report.hpp"
#include "core/memory/tensor_handle.hpp"
#include "core/model/deferred_model.hpp"
#include "tests/support/ranks.hpp"

namespace capstan {
namespace {

/// A model of much memory and little work: the product of one row of each matrix, which has a gradient for all of the
/// matrix, and brings it once in forward and, behind the first that is trained, once in backward. Of `period` matrices
/// in a row the last is trained, the others are frozen. Each is the weight of a linear module.
struct WideModel {
  std::vector<NamedTensor> parameters;

  WideModel(std::size_t count, std::int64_t rows, std::size_t period) {
    for (std::size_t i = 0; i < count; ++i) {
      const bool trained = i % period == period - 1;
      parameters.push_back({path(i) + ".weight", at::full({rows, 1000}, 1.0).requires_grad_(trained)});
    }
  }

  static std::string path(std::size_t index) { return "matrix" + std::to_string(index); }

  static const capstan_model& table() {
    static const capstan_model instance = [] {
      capstan_model table{};
      table.struct_size = sizeof table;
      table.visit = [](void* self, const capstan_visitor* visitor, capstan_error*) {
        const auto& parameters = static_cast<WideModel*>(self)->parameters;
        for (std::size_t i = 0; visitor->module && i < parameters.size(); ++i) {
          visitor->module(visitor->ctx, as_str(path(i)), as_str("torch::nn::LinearImpl"));
        }
        for (const NamedTensor& parameter : parameters) {
          visitor->tensor(visitor->ctx, as_str(parameter.name), handle_of(parameter.tensor), CAPSTAN_ROLE_PARAMETER);
        }
        return CAPSTAN_OK;
      };
      table.forward = [](void* self, capstan_batch*, capstan_tensor* loss, capstan_error*) {
        const auto& parameters = static_cast<WideModel*>(self)->parameters;
        at::Tensor product = at::ones({1000}, parameters.front().tensor.scalar_type());
        for (const NamedTensor& parameter : parameters) product = product * parameter.tensor.select(0, 0);
        *loss = reinterpret_cast<capstan_tensor>(new at::Tensor(product.to(at::kFloat).mean()));
        return CAPSTAN_OK;
      };
      table.training = [](void*, int, capstan_error*) { return CAPSTAN_OK; };
      return table;
    }();
    return instance;
  }
};

constexpr int kBucket = 2'000'000;

/// How weights are quantised. Those of matrices whose number does not end with 0 are; without bits none is.
struct Weights {
  int bits = 0, groups = 1;
  const char* type = "symmetric";

  std::string section() const {
    if (bits == 0) return "";
    const std::string number = std::to_string(bits);
    return R"(, "compression_training": {"weight_quantization": {"shared_parameters": {"enabled": true,
      "quantize_weight_in_forward": true, "schedule_offset": 0, "quantization_type": ")" +
           std::string(type) + R"(", "quantize_groups": )" + std::to_string(groups) +
           R"(}, "different_groups": {"wq": {"modules": ["[1-9]$"], "params": {"start_bits": )" + number +
           R"(, "target_bits": )" + number + "}}}}}";
  }
};

struct Case {
  int ranks, stage;
  const char* more = "";   // further keys of the configuration
  const char* zero = "";   // further keys of zero_optimization
  std::size_t period = 1;  // one matrix in so many is trained
  int bucket = kBucket;
  Weights weights = {};
};

void PrintTo(const Case& one, std::ostream* out) {
  *out << one.ranks << " ranks, stage " << one.stage << one.zero << one.more << ", 1 of " << one.period << " trained";
  if (one.weights.bits > 0) *out << ", weights of " << one.weights.bits << " bits, " << one.weights.type;
}

class Planned : public testing::TestWithParam<Case> {};

/// Sets the peak that the kernel tells back to what is resident now.
void forget_peak() { std::ofstream("/proc/self/clear_refs") << "5"; }

using Bytes = std::map<std::string, std::uint64_t>;  // by collective

/// What has been sent so far. Collectives that have sent nothing are left out.
Bytes sent(Communicator& communicator) {
  Bytes bytes;
  for (const auto& [collective, traffic] : communicator.log().traffic()) {
    if (traffic.bytes > 0) bytes[collective] = traffic.bytes;
  }
  return bytes;
}

/// Trains a model of so many matrices, and holds the plan against what that took.
void train(Communicator& communicator, const Case& one, std::size_t matrices, std::int64_t rows, bool check) {
  PluginIndex plugins;
  ConfigContext context;
  context.world_size = communicator.size();
  const Config config = load_config({R"({"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2,
    "steps_per_print": null, "optimizer": {"type": "AdamW", "params": {"lr": 0.001}},
    "zero_optimization": {"reduce_bucket_size": )" +
                                         std::to_string(one.bucket) + R"(, "stage": )" + std::to_string(one.stage) +
                                         one.zero + "}" + one.more + one.weights.section() + "}",
                                     "test", false},
                                    context, plugins);
  const std::uint64_t before = host_memory().resident;
  forget_peak();
  std::unique_ptr<WideModel> wide;
  const auto build = [&] {
    wide = std::make_unique<WideModel>(matrices, rows, one.period);
    return Model(
        &WideModel::table(), wide.get(), [](void*) {}, "wide");
  };
  Model model = one.stage == 3 ? without_values(build) : build();
  const PlannedRun run = planned_run(model, config, plugins, communicator.size());
  const MemoryPlan plan = plan_memory(run, configured_choice(config));
  {
    Engine engine(std::move(model), config, plugins, {&communicator, [](Communicator*) {}});
    const auto step = [&] { engine.train_batch([] { return Batch{}; }); };
    step();
    // Equal as a whole: a collective that the plan forgets is as wrong as one that it counts wrong.
    Bytes expected = sent(communicator);
    for (const PlannedTraffic& row : plan_traffic(run, one.stage)) {
      if (row.bytes > 0) expected[row.collective] += static_cast<std::uint64_t>(row.bytes);
    }
    step();
    if (communicator.rank() == 0) {
      EXPECT_EQ(sent(communicator), expected);
    }
    step();
  }
  if (!check) return;
  const auto took = static_cast<double>(host_memory().peak - before);
  const auto planned = static_cast<double>(plan.peak(MemoryTier::kMemory));
  EXPECT_GE(took, 0.95 * planned);
  EXPECT_LE(took, 1.05 * planned);
}

TEST_P(Planned, IsWhatTrainingTakesAndSends) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "AddressSanitizer keeps freed memory";
#endif
  const Case one = GetParam();
  const auto body = [one](Communicator& communicator) {
    // What the C library's heap keeps of buffers that come and go, up to 64 MB, depends on the timing of the threads.
    // Memory that was mapped for one buffer goes back with it.
    mallopt(M_MMAP_THRESHOLD, 64 << 10);
    train(communicator, one, 2 * one.period, 10, /*check=*/false);  // what the first steps of a process touch for ever
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
                                         Case{2, 3, kBf16}, Case{4, 2, ""}, Case{4, 2, kBf16}));

constexpr const char* kBf16Masters = R"(, "bf16": {"enabled": true, "bf16_master_weights_and_grads": true})";
constexpr const char* kAllBf16 =
    R"(, "bf16": {"enabled": true, "bf16_master_weights_and_grads": true, "bf16_optimizer_states": true})";
constexpr const char* kAllBf16AtRandom = R"(, "capstan": {"precision": {"stochastic_rounding": true}},
    "bf16": {"enabled": true, "bf16_master_weights_and_grads": true, "bf16_optimizer_states": true})";

INSTANTIATE_TEST_SUITE_P(LowPrecisionMasters, Planned,
                         testing::Values(Case{1, 0, kBf16Masters}, Case{2, 2, kAllBf16}, Case{2, 3, kAllBf16AtRandom}));

constexpr const char* kLittleKept = R"(, "stage3_max_reuse_distance": 0, "stage3_prefetch_bucket_size": 1600000)";
constexpr const char* kSomeKept = R"(, "stage3_max_reuse_distance": 20000000, "stage3_max_live_parameters": 15000000)";
constexpr const char* kPersistent =
    R"(, "stage3_param_persistence_threshold": 1000000, "stage3_model_persistence_threshold": 20000000)";
constexpr const char* kSecondCopy = R"(, "zero_hpz_partition_size": 2, "stage3_max_reuse_distance": 0)";
constexpr const char* kCodes = R"(, "zero_quantized_nontrainable_weights": true)";
constexpr const char* kCodesLittleKept = R"(, "zero_quantized_nontrainable_weights": true,
    "stage3_max_reuse_distance": 0, "stage3_prefetch_bucket_size": 1600000, "overlap_comm": false)";
constexpr const char* kAllCodes = R"(, "zero_quantized_nontrainable_weights": true, "zero_quantized_weights": true,
    "stage3_max_reuse_distance": 0)";
constexpr int kSmallBucket = 500'000;  // how many wait depends on the timing of the threads

INSTANTIATE_TEST_SUITE_P(PartlyFrozen, Planned,
                         testing::Values(Case{1, 0, kBf16, "", 5}, Case{2, 0, kBf16, "", 5}, Case{2, 1, "", "", 5},
                                         Case{2, 2, kBf16, "", 20}, Case{2, 3, "", "", 5},
                                         Case{2, 3, kBf16, kLittleKept, 5, kSmallBucket},
                                         Case{3, 3, "", kSomeKept, 5, kSmallBucket}, Case{2, 3, "", kPersistent, 5},
                                         Case{4, 3, "", kSecondCopy, 5}, Case{2, 3, "", kCodes, 5},
                                         Case{2, 3, "", kCodesLittleKept, 5, kSmallBucket},
                                         Case{2, 3, kBf16, kCodesLittleKept, 5, kSmallBucket},
                                         Case{2, 3, "", kAllCodes, 5, kSmallBucket}));

constexpr Weights kEight{8}, kFourInGroups{4, 10}, kAsymmetric{8, 10, "asymmetric"};

INSTANTIATE_TEST_SUITE_P(CompressedWeights, Planned,
                         testing::Values(Case{1, 0, "", "", 1, kBucket, kEight},
                                         Case{2, 2, kBf16, "", 1, kBucket, kAsymmetric},
                                         Case{2, 3, "", kLittleKept, 1, kSmallBucket, kEight},
                                         Case{3, 3, kBf16, kLittleKept, 5, kSmallBucket, kFourInGroups},
                                         Case{2, 3, "", kPersistent, 5, kSmallBucket, kAsymmetric}));

}  // namespace
}  // namespace capstan
