// One rank of a training whose steps are timed: started once for each rank by the scripts beside it, with the variables
// of torchrun, or alone. Rank 0 prints one line: the median step in milliseconds, what the process has needed of memory
// at most (VmHWM) in KiB, the trainable parameters, the bytes that it sent in the last step, and the bytes of memory
// that the plan has for a process.
//
//   rank_step MODEL STAGE STEPS [ROWS] [LAYERS] [WIDTH] [transfer | lean] [BITS | l1 | topk]
//
// MODEL: mlp, LAYERS matrices of WIDTH squared; small, 100 tensors; gpt, blocks of WIDTH over bytes.
// transfer: the step's collectives alone, on tensors of the same sizes. lean: stage 3 fetches little ahead and keeps
// nothing from one use to the next. BITS: the weights of gpt's blocks are quantised to so many; 0: none is. l1, topk:
// half of them are masked by that method.

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "core/comm/communicator.hpp"
#include "core/engine/engine.hpp"
#include "core/engine/initialize.hpp"
#include "core/engine/planned_run.hpp"
#include "core/memory/tensor_handle.hpp"
#include "core/model/deferred_model.hpp"
#include "core/registry/registry.hpp"
#include "core/zero/partition.hpp"

namespace {

using namespace capstan;

constexpr int kWarmUp = 3;
constexpr std::int64_t kTokens = 256;

struct Arguments {
  std::string model;
  int stage, steps;
  std::int64_t rows, layers, width;
  bool transfer, lean;
  std::string compressed;
};

/// x -> tanh(x W' + b), several times; the loss is the mean square of the last.
struct Layers {
  std::vector<at::Tensor> parameters;
  std::int64_t width;

  Layers(std::int64_t layers, std::int64_t of_width) : width(of_width) {
    at::manual_seed(7);
    for (std::int64_t i = 0; i < layers; ++i) {
      parameters.push_back(at::randn({width, width}).mul_(1 / std::sqrt(static_cast<double>(width))));
      parameters.push_back(at::zeros({width}));
    }
    for (at::Tensor& parameter : parameters) parameter.requires_grad_();
  }
  at::Tensor loss(const at::Tensor& input) const {
    at::Tensor hidden = input;
    for (std::size_t i = 0; i < parameters.size(); i += 2) {
      hidden = at::tanh(at::linear(hidden, parameters[i], parameters[i + 1]));
    }
    return hidden.pow(2).mean();
  }
};

const capstan_model kLayersTable = [] {
  capstan_model table{};
  table.struct_size = sizeof table;
  table.visit = [](void* self, const capstan_visitor* visitor, capstan_error*) {
    int index = 0;
    for (const at::Tensor& parameter : static_cast<Layers*>(self)->parameters) {
      visitor->tensor(visitor->ctx, as_str("p" + std::to_string(index++)), handle_of(parameter),
                      CAPSTAN_ROLE_PARAMETER);
    }
    return CAPSTAN_OK;
  };
  table.forward = [](void* self, capstan_batch* batch, capstan_tensor* loss, capstan_error*) {
    const at::Tensor value = static_cast<Layers*>(self)->loss(batch->tensors.find("x")->second);
    *loss = reinterpret_cast<capstan_tensor>(new at::Tensor(value));
    return CAPSTAN_OK;
  };
  table.training = [](void*, int, capstan_error*) { return CAPSTAN_OK; };
  return table;
}();

std::string compression(const std::string& number) {
  if (number == "0") return "{}";
  if (number == "l1" || number == "topk") {
    return R"({"sparse_pruning": {"shared_parameters": {"enabled": true, "method": ")" + number +
           R"("}, "different_groups": {"all": {"modules": ["attn", "mlp"], "params": {"dense_ratio": 0.5}}}}})";
  }
  return R"({"weight_quantization": {"shared_parameters": {"enabled": true, "quantize_weight_in_forward": true,
    "schedule_offset": 0, "quantize_groups": 64}, "different_groups": {"all": {"modules": ["attn", "mlp"],
    "params": {"start_bits": )" +
         number + R"(, "target_bits": )" + number + "}}}}}";
}

Config read(const Arguments& given, int ranks, PluginIndex& plugins) {
  ConfigContext context;
  context.world_size = ranks;
  const std::string text =
      R"({"train_micro_batch_size_per_gpu": )" + std::to_string(given.rows) +
      R"(, "steps_per_print": null, "gradient_clipping": 0,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}, "compression_training": )" +
      compression(given.compressed) + R"(, "zero_optimization": {"overlap_comm": true, "stage": )" +
      std::to_string(given.stage) +
      (given.lean && given.stage == 3 ? R"(, "stage3_max_reuse_distance": 0, "stage3_prefetch_bucket_size": )" +
                                            std::to_string(given.width * given.width)
                                      : "") +
      R"(}, "capstan": {"model": {"type": "gpt", "params": {"layers": )" + std::to_string(given.layers) + R"(, "d": )" +
      std::to_string(given.width) + R"(, "heads": 8, "seq": )" + std::to_string(kTokens) + "}}}}";
  return load_config({text, "bench", false}, context, plugins);
}

Model build(const Arguments& given, const Config& config, const PluginIndex& plugins) {
  if (given.model == "gpt") {
    Registry registry(plugins, {});
    return Model(registry.create("bench", "model", "gpt", config.run.model->params, model_host()));
  }
  return Model(
      &kLayersTable, new Layers(given.layers, given.width), [](void* self) { delete static_cast<Layers*>(self); },
      "layers");
}

Batch batch_of(const Arguments& given) {
  Batch batch;
  if (given.model == "gpt") {
    const at::Tensor tokens = at::randint(256, {given.rows, kTokens + 1}, at::kLong);
    batch.tensors.emplace("input_ids", tokens.narrow(1, 0, kTokens).contiguous());
    batch.tensors.emplace("labels", tokens.narrow(1, 1, kTokens).contiguous());
  } else {
    batch.tensors.emplace("x", at::randn({given.rows, given.width}));
  }
  return batch;
}

std::int64_t peak_kib() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word == "VmHWM:") {
      status >> word;
      return std::stoll(word);
    }
  }
  return 0;
}

std::uint64_t sent(Communicator& communicator) {
  std::uint64_t bytes = 0;
  for (const auto& [name, traffic] : communicator.log().traffic()) bytes += traffic.bytes;
  return bytes;
}

/// What a step exchanges, in buckets of the size that the engine makes: gradients go to their owners, means or
/// parameters come back.
void transfer(Communicator& communicator, std::int64_t elements, std::vector<at::Tensor>& buffer) {
  constexpr std::int64_t kBucket = Partition::kLargestBucket;
  const std::int64_t ranks = communicator.size();
  for (std::int64_t first = 0; first < elements; first += kBucket) {
    const std::int64_t part = std::min(kBucket, elements - first) / ranks;
    std::vector<at::Tensor> parts;
    for (at::Tensor& one : buffer) parts.push_back(one.narrow(0, 0, part));
    communicator.reduce_scatter("bench, gradients", parts);
    communicator.all_gather("bench, parameters", parts);
  }
}

}  // namespace

int main(int count, char** words) {
  if (count < 4) {
    std::fprintf(stderr, "rank_step MODEL STAGE STEPS [ROWS] [LAYERS] [WIDTH] [transfer | lean] [BITS | l1 | topk]\n");
    return 2;
  }
  const auto number = [&](int at, std::int64_t otherwise) { return count > at ? std::atoll(words[at]) : otherwise; };
  Arguments given{words[1],
                  static_cast<int>(number(2, 0)),
                  static_cast<int>(number(3, 10)),
                  number(4, 64),
                  number(5, 8),
                  number(6, 1024),
                  count > 7 && std::string(words[7]) == "transfer",
                  count > 7 && std::string(words[7]) == "lean",
                  count > 8 ? words[8] : "0"};
  if (given.model == "small") {
    given.layers = 50;
    given.width = 16;
  }
  at::set_num_threads(1);
  try {
    const Rendezvous rendezvous = read_rendezvous(process_environment());
    auto communicator = Communicator::connect(rendezvous, {});
    PluginIndex plugins;
    const Config config = read(given, rendezvous.size, plugins);
    const auto build_plainly = [&] { return build(given, config, plugins); };
    Model model = given.stage == 3 && rendezvous.size > 1 ? without_values(build_plainly) : build_plainly();
    std::int64_t elements = 0;
    for (const NamedTensor& parameter : model.parameters()) elements += parameter.tensor.numel();
    const MemoryPlan plan =
        plan_memory(planned_run(model, config, plugins, rendezvous.size), configured_choice(config));
    Engine engine(std::move(model), config, plugins, communicator);
    const Batch batch = batch_of(given);
    std::vector<at::Tensor> buffer;
    for (int rank = 0; given.transfer && rank < rendezvous.size; ++rank)
      buffer.push_back(at::zeros({Partition::kLargestBucket}));

    std::vector<double> times;
    std::uint64_t last = 0;
    for (int step = 0; step < kWarmUp + given.steps; ++step) {
      const std::uint64_t before = sent(*communicator);
      const auto begun = std::chrono::steady_clock::now();
      if (given.transfer) {
        transfer(*communicator, elements, buffer);
      } else {
        engine.train_batch([&] { return batch; });
      }
      const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begun;
      if (step >= kWarmUp) times.push_back(took.count());
      last = sent(*communicator) - before;
    }
    std::nth_element(times.begin(), times.begin() + given.steps / 2, times.end());
    if (rendezvous.rank == 0) {
      std::printf("%.3f %lld %lld %llu %lld\n", times[times.size() / 2], static_cast<long long>(peak_kib()),
                  static_cast<long long>(elements), static_cast<unsigned long long>(last),
                  static_cast<long long>(plan.peak(MemoryTier::kMemory)));
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank_step: %s\n", error.what());
    return 1;
  }
  return 0;
}
