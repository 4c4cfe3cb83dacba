#include "tests/core/zero/mixed_model.hpp"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <random>
#include <stdexcept>
#include <utility>

#include "core/memory/tensor_handle.hpp"

namespace capstan::test {

MixedModel::MixedModel(std::uint64_t seed, std::int64_t largest) {
  at::manual_seed(seed);
  std::mt19937_64 random(seed);
  const auto size = [&](std::int64_t most) {
    return std::int64_t{1} + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(most));
  };
  const auto add = [&](const std::string& name, at::Tensor values) {
    parameters.push_back({name, values.requires_grad_(name != "frozen")});
  };
  add("twice", at::randn({3, size(9)}));
  add("scalar", at::randn({}));
  add("frozen", at::randn({4}));
  add("large", at::randn({400 + size(largest / 100), 100}));  // more than a block, so that it is cut
  add("transposed", at::randn({size(70), 13}).t());
  const at::Tensor pair = at::randn({10 + size(200)});
  add("pair.a", pair.narrow(0, 0, 7).detach());
  add("pair.b", pair.narrow(0, 7, pair.numel() - 7).detach());
  add("empty", at::zeros({0, 3}));
  add("unused", at::randn({5}));
  add("sometimes", at::randn({size(2000)}));
  for (std::uint64_t i = random() % 4; i < 6; ++i) add("more" + std::to_string(i), at::randn({size(3000)}));
}

at::Tensor MixedModel::loss(const at::Tensor& x) const {
  at::Tensor sum = at::zeros({});
  std::int64_t column = 0;
  const auto term = [&](const at::Tensor& parameter) {
    if (parameter.numel() == 0) return;
    const at::Tensor factor = x.select(1, column++ % x.size(1)) + 1;
    sum = sum + at::sin(at::outer(parameter.to(at::kFloat).reshape({-1}), factor)).mean();
  };
  for (const NamedTensor& parameter : parameters) {
    if (parameter.name == "unused") continue;
    if (skips && parameter.name == "sometimes" && x[0][0].item<float>() < 0.3f) continue;
    term(parameter.tensor);
    if (parameter.name == "twice") term(parameter.tensor);
    if (root_of && parameter.name == "large") {
      const at::Tensor nothing = parameter.tensor - parameter.tensor.detach();
      sum = sum + (nothing.to(at::kFloat).pow(2).sum() + *root_of).sqrt();
    }
    if (fails && parameter.name == "pair.a") throw std::runtime_error("out of ideas");
    if (in_backward && parameter.name == "pair.a") {
      sum.register_hook([this](const at::Tensor&) { in_backward(); });
    }
  }
  if (noisy) sum = sum * (at::rand({}) + 1);
  return sum * loss_factor + loss_added;
}

const capstan_model& MixedModel::table() {
  static const capstan_model instance = [] {
    capstan_model table{};
    table.struct_size = sizeof table;
    table.visit = [](void* self, const capstan_visitor* visitor, capstan_error*) {
      for (const ModuleRecord& module : static_cast<MixedModel*>(self)->modules) {
        visitor->module(visitor->ctx, as_str(module.path), as_str(module.class_name));
      }
      for (const NamedTensor& parameter : static_cast<MixedModel*>(self)->parameters) {
        visitor->tensor(visitor->ctx, as_str(parameter.name), handle_of(parameter.tensor), CAPSTAN_ROLE_PARAMETER);
      }
      return CAPSTAN_OK;
    };
    table.forward = [](void* self, capstan_batch* batch, capstan_tensor* loss, capstan_error*) {
      *loss = reinterpret_cast<capstan_tensor>(
          new at::Tensor(static_cast<MixedModel*>(self)->loss(batch->tensors.find("x")->second)));
      return CAPSTAN_OK;
    };
    table.training = [](void*, int, capstan_error*) { return CAPSTAN_OK; };
    return table;
  }();
  return instance;
}

Batch rows_of_stream(std::int64_t first, std::int64_t rows) {
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU);
  const at::Tensor kept = generator.get_state();
  std::vector<at::Tensor> list;
  for (std::int64_t row = first; row < first + rows; ++row) {
    generator.set_current_seed(static_cast<std::uint64_t>(7000 + row));
    list.push_back(at::randn({1, 5}));
  }
  generator.set_state(kept);
  Batch batch;
  batch.tensors.emplace("x", at::cat(list));
  return batch;
}

MixedRun::MixedRun(const std::string& config_json, std::shared_ptr<Communicator> ranks, std::uint64_t seed,
                   std::int64_t largest, std::vector<ModuleRecord> modules,
                   const std::shared_ptr<DeferredValues>& deferred, const std::function<void(Config&)>& change)
    : model([&] {
        std::optional<DeferredValues::Scope> scope;
        if (deferred) scope.emplace(*deferred);
        return MixedModel(seed, largest);
      }()),
      engine([&] {
        model.modules = std::move(modules);
        ConfigContext context;
        context.world_size = ranks->size();
        Config config = load_config({config_json, "test", false}, context, plugins);
        change(config);
        Model shown(
            &MixedModel::table(), &model, [](void*) {}, model.description);
        shown.set_deferred(deferred);
        return Engine(std::move(shown), config, plugins, ranks);
      }()) {}

double MixedRun::step() {
  const std::int64_t rows = engine.config().batch.micro_batch_size;
  std::int64_t first = engine.progress().global_samples + engine.rank() * rows;
  return engine.train_batch([&] {
    Batch batch = rows_of_stream(first, rows);
    first += rows * engine.world_size();
    return batch;
  });
}

std::vector<double> MixedRun::steps(int count) {
  std::vector<double> losses;
  for (int i = 0; i < count; ++i) losses.push_back(step());
  return losses;
}

at::Tensor MixedRun::values() {
  const GatherScope held = engine.gather();
  std::vector<at::Tensor> all;
  for (const NamedTensor& parameter : model.parameters) all.push_back(parameter.tensor.detach().reshape({-1}));
  return at::cat(all).to(at::kFloat);
}

}  // namespace capstan::test
