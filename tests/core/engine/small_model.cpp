#include "tests/core/engine/small_model.hpp"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros.h>

#include <utility>

#include "core/memory/tensor_handle.hpp"

namespace capstan::testing_support {

void seed(std::uint64_t value) {
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU);
  generator.set_current_seed(value);
}

SmallModel::SmallModel(std::uint64_t weights_seed) : buffer(at::zeros({2}).fill_(3)) {
  seed(weights_seed);
  parameters = {{"w1", at::randn({6, 4}).mul_(0.5)},
                {"b1", at::randn({6}).mul_(0.1)},
                {"w2", at::randn({1, 6}).mul_(0.5)},
                {"unused", at::randn({5})},
                {"frozen", at::randn({1})}};
  for (NamedTensor& parameter : parameters) parameter.tensor.requires_grad_(parameter.name != "frozen");
}

at::Tensor SmallModel::loss(const at::Tensor& x, const at::Tensor& y) const {
  const at::Tensor input = x.to(parameters[0].tensor.scalar_type());
  at::Tensor hidden = at::tanh(at::linear(input, parameters[0].tensor, parameters[1].tensor));
  if (dropout > 0) hidden = at::dropout(hidden, dropout, /*train=*/true);
  const at::Tensor output = at::linear(hidden, parameters[2].tensor) + parameters[4].tensor;
  const at::Tensor mean = (output.to(at::kFloat).squeeze(1) - y).pow(2).mean() * loss_factor + loss_added;
  if (!steep) return mean;
  const at::Tensor& w2 = parameters[2].tensor;
  return mean + (w2 - w2.detach()).to(at::kFloat).pow(2).sum().sqrt();
}

const capstan_model& SmallModel::table() {
  static const capstan_model instance = [] {
    capstan_model table{};
    table.struct_size = sizeof table;
    table.visit = [](void* self, const capstan_visitor* visitor, capstan_error*) {
      auto& model = *static_cast<SmallModel*>(self);
      for (const NamedTensor& parameter : model.parameters) {
        visitor->tensor(visitor->ctx, as_str(parameter.name), handle_of(parameter.tensor), CAPSTAN_ROLE_PARAMETER);
      }
      for (const ModuleRecord& module : model.modules) {
        visitor->module(visitor->ctx, as_str(module.path), as_str(module.class_name));
      }
      visitor->tensor(visitor->ctx, as_str("buffer"), handle_of(model.buffer), CAPSTAN_ROLE_BUFFER);
      return CAPSTAN_OK;
    };
    table.forward = [](void* self, capstan_batch* batch, capstan_tensor* loss, capstan_error*) {
      const at::Tensor value =
          static_cast<SmallModel*>(self)->loss(batch->tensors.find("x")->second, batch->tensors.find("y")->second);
      *loss = reinterpret_cast<capstan_tensor>(new at::Tensor(value));
      return CAPSTAN_OK;
    };
    table.training = [](void*, int, capstan_error*) { return CAPSTAN_OK; };
    return table;
  }();
  return instance;
}

Batch batch_number(std::int64_t index, std::int64_t rows) {
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU);
  const at::Tensor kept = generator.get_state();
  seed(1000 + static_cast<std::uint64_t>(index));
  Batch batch;
  const at::Tensor x = at::randn({rows, 4});
  batch.tensors.emplace("x", x);
  batch.tensors.emplace("y", x.sum(1).sin());
  generator.set_state(kept);
  return batch;
}

SmallRun::SmallRun(const std::string& config_json, std::uint64_t weights_seed, std::vector<ModuleRecord> modules)
    : model(weights_seed), engine([&] {
        model.modules = std::move(modules);
        const Config config = load_config({config_json, "test", false}, {}, plugins);
        return Engine(Model(
                          &SmallModel::table(), &model, [](void*) {}, "small"),
                      config, plugins);
      }()) {
  rows = engine.config().batch.micro_batch_size;
  next_batch = 0;
}

double SmallRun::step() {
  return engine.train_batch([&] { return batch_number(next_batch++, rows); });
}

void SmallRun::steps(int count) {
  for (int i = 0; i < count; ++i) step();
}

}  // namespace capstan::testing_support
