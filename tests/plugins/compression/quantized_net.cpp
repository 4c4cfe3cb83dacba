#include "tests/plugins/compression/quantized_net.hpp"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros.h>

#include <optional>
#include <stdexcept>

#include "core/memory/tensor_handle.hpp"

namespace capstan::testing {
namespace {

constexpr std::int64_t kWords = 512, kWidth = 256, kHidden = 384, kTokens = 6;

constexpr std::pair<const char*, const char*> kModules[] = {{"", "QuantizedNet"},
                                                            {"emb", "torch::nn::EmbeddingImpl"},
                                                            {"fc1", "torch::nn::LinearImpl"},
                                                            {"fc2", "torch::nn::LinearImpl"},
                                                            {"head", "torch::nn::LinearImpl"}};

}  // namespace

const char* const kNetCompressions = R"("weight_quantization": {"shared_parameters": {"enabled": true,
    "quantize_weight_in_forward": true, "quantize_groups": 4},
    "different_groups": {"w8": {"params": {"start_bits": 8, "target_bits": 8}, "modules": ["fc1", "emb"]},
                         "w4": {"params": {"start_bits": 4, "target_bits": 4}, "modules": ["fc2"]}}},
  "activation_quantization": {"shared_parameters": {"enabled": true, "range_calibration": "static"},
    "different_groups": {"a8": {"params": {"bits": 8}, "modules": ["fc"]}}})";

QuantizedNet::QuantizedNet(std::uint64_t seed) {
  at::manual_seed(seed);
  const auto add = [&](const char* name, const at::Tensor& values) {
    parameters.push_back({name, values.requires_grad_()});
  };
  add("emb.weight", at::randn({kWords, kWidth}).mul_(0.1));
  add("fc1.weight", at::randn({kHidden, kWidth}).mul_(0.06));
  add("fc2.weight", at::randn({kWidth, kHidden}).mul_(0.05));
  add("gain", at::zeros({7}));
}

at::Tensor QuantizedNet::loss(const at::Tensor& ids, const at::Tensor& labels) {
  const auto tensor = [&](int index) { return parameters[static_cast<std::size_t>(index)].tensor; };
  const at::Tensor emb = tensor(0), gain = tensor(3);
  at::Tensor hidden = at::embedding(emb, ids);
  const at::Tensor wide = at::tanh(at::linear(hidden, tensor(1)));
  if (fails > 0) {
    --fails;
    throw std::runtime_error("out of ideas");
  }
  if (fails_backward) wide.register_hook([](const at::Tensor&) { throw std::runtime_error("no way back"); });
  hidden = (hidden + at::linear(wide, tensor(2))) * (gain.sum() + 1);
  return at::cross_entropy_loss(at::linear(hidden, emb).to(at::kFloat).view({-1, kWords}), labels.view({-1})) * factor;
}

const capstan_model& QuantizedNet::table() {
  static const capstan_model instance = [] {
    capstan_model table{};
    table.struct_size = sizeof table;
    table.visit = [](void* self, const capstan_visitor* visitor, capstan_error*) {
      for (const auto& [path, name] : kModules) visitor->module(visitor->ctx, as_str(path), as_str(name));
      for (const NamedTensor& parameter : static_cast<QuantizedNet*>(self)->parameters) {
        visitor->tensor(visitor->ctx, as_str(parameter.name), handle_of(parameter.tensor), CAPSTAN_ROLE_PARAMETER);
      }
      return CAPSTAN_OK;
    };
    table.forward = [](void* self, capstan_batch* batch, capstan_tensor* loss, capstan_error*) {
      *loss = reinterpret_cast<capstan_tensor>(new at::Tensor(static_cast<QuantizedNet*>(self)->loss(
          batch->tensors.find("ids")->second, batch->tensors.find("labels")->second)));
      return CAPSTAN_OK;
    };
    table.training = [](void*, int, capstan_error*) { return CAPSTAN_OK; };
    return table;
  }();
  return instance;
}

Batch net_batch(std::int64_t first, std::int64_t rows) {
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU);
  const at::Tensor kept = generator.get_state();
  std::vector<at::Tensor> list;
  for (std::int64_t row = first; row < first + rows; ++row) {
    generator.set_current_seed(static_cast<std::uint64_t>(9000 + row));
    list.push_back(at::randint(0, kWords, {1, kTokens + 1}, at::kLong));
  }
  generator.set_state(kept);
  const at::Tensor ids = at::cat(list);
  Batch batch;
  batch.tensors = {{"ids", ids.narrow(1, 0, kTokens).contiguous()}, {"labels", ids.narrow(1, 1, kTokens).contiguous()}};
  return batch;
}

std::string net_config(int ranks, const std::string& zero, const std::string& more, const std::string& capstan,
                       const std::string& compressions) {
  return R"({"train_micro_batch_size_per_gpu": )" + std::to_string(kNetRows / ranks) +
         R"(, "steps_per_print": null, "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0.1}},
           "zero_optimization": )" +
         zero + (compressions.empty() ? "" : R"(, "compression_training": {)" + compressions + "}") +
         R"(, "capstan": {)" + capstan + "}" + more + "}";
}

NetRun::NetRun(const std::string& config, std::shared_ptr<Communicator> ranks, std::uint64_t seed,
               const std::shared_ptr<DeferredValues>& deferred)
    : net([&] {
        std::optional<DeferredValues::Scope> scope;
        if (deferred) scope.emplace(*deferred);
        return QuantizedNet(seed);
      }()),
      engine([&] {
        ConfigContext context;
        context.world_size = ranks->size();
        Model shown(
            &QuantizedNet::table(), &net, [](void*) {}, "net");
        shown.set_deferred(deferred);
        return Engine(std::move(shown), load_config({config, "test", false}, context, plugins), plugins, ranks);
      }()) {}

std::function<Batch()> NetRun::batches() const {
  const std::int64_t rows = engine.config().batch.micro_batch_size;
  return [rows, stride = rows * engine.world_size(),
          first = engine.progress().global_samples + engine.rank() * rows]() mutable {
    const std::int64_t at = first;
    first += stride;
    return net_batch(at, rows);
  };
}

double NetRun::step() { return engine.train_batch(batches()); }

std::vector<double> NetRun::steps(int count) {
  std::vector<double> losses;
  losses.reserve(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) losses.push_back(step());
  return losses;
}

double NetRun::evaluated() {
  return engine.eval_batch([] { return net_batch(1'000'000, kNetRows); }, 1);
}

at::Tensor NetRun::values() {
  const GatherScope held = engine.gather();
  std::vector<at::Tensor> all;
  for (const NamedTensor& parameter : net.parameters) all.push_back(parameter.tensor.detach().reshape({-1}));
  return at::cat(all).to(at::kFloat);
}

}  // namespace capstan::testing
