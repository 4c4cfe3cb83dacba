#include "core/model/model.hpp"

#include <algorithm>
#include <utility>

#include "core/errors.hpp"
#include "core/memory/tensor_handle.hpp"
#include "core/model/parameter_roles.hpp"
#include "core/model/saved_names.hpp"

namespace capstan {

/// Owns what stands behind `self`: a plugin's component, or a program's own object.
struct Model::Owner {
  std::unique_ptr<Component> component;
  void* self = nullptr;
  void (*destroy)(void*) = nullptr;
  ~Owner() {
    if (destroy) destroy(self);
  }
};

Model::Model(Component component) : owner_(std::make_unique<Owner>()) {
  owner_->component = std::make_unique<Component>(std::move(component));
  vtable_ = owner_->component->vtable<capstan_model>();
  self_ = owner_->component->self();
  description_ = owner_->component->manifest().type;
  collect();
}

Model::Model(const capstan_model* vtable, void* self, void (*destroy)(void*), std::string description)
    : owner_(std::make_unique<Owner>()), vtable_(vtable), self_(self), description_(std::move(description)) {
  owner_->self = self;
  owner_->destroy = destroy;
  collect();
}

/// Of a program's own object, which is nobody's plugin, nothing.
PluginFunction Model::function(const char* name) const {
  return owner_->component ? owner_->component->function(name) : PluginFunction{};
}

Model::~Model() = default;
Model::Model(Model&&) noexcept = default;

void Model::collect() {
  capstan_visitor visitor{};
  visitor.struct_size = sizeof visitor;
  visitor.ctx = this;
  visitor.tensor = [](void* ctx, capstan_str name, capstan_tensor tensor, capstan_role role) {
    auto* model = static_cast<Model*>(ctx);
    auto& list = role == CAPSTAN_ROLE_BUFFER ? model->buffers_ : model->parameters_;
    list.push_back({.name = std::string(as_view(name)), .tensor = tensor_of(tensor)});
  };
  visitor.module = [](void* ctx, capstan_str path, capstan_str class_name) {
    static_cast<Model*>(ctx)->modules_.push_back({std::string(as_view(path)), std::string(as_view(class_name))});
  };
  call_plugin(function("visit"), "model '" + description_ + "'",
              [&](capstan_error* error) { return vtable_->visit(self_, &visitor, error); });
  const Json facts = describe();
  const std::string where = "model '" + description_ + "', describe";
  find_roles(parameters_, ParameterClasses(*this), facts, where);
  find_persistence(buffers_, facts, where);
  tied_ = read_tied(parameters_, buffers_, facts, where);
}

void Model::leave_out(const std::vector<std::string>& names) {
  for (NamedTensor& parameter : parameters_) {
    parameter.left_out = std::find(names.begin(), names.end(), parameter.name) != names.end();
  }
}

void Model::check(Batch& batch) const {
  if (!CAPSTAN_HAS(vtable_, check)) return;
  call_plugin(function("check"), "model '" + description_ + "', batch",
              [&](capstan_error* error) { return vtable_->check(self_, &batch, error); });
}

at::Tensor Model::forward(Batch& batch) {
  capstan_tensor handle = nullptr;
  const std::string where = "model '" + description_ + "', forward";
  call_plugin(function("forward"), where,
              [&](capstan_error* error) { return vtable_->forward(self_, &batch, &handle, error); });
  at::Tensor loss = take_tensor(handle);
  if (!loss.defined()) throw PluginError(where + ": gives no loss.");
  return loss;
}

std::map<std::string, at::Tensor> Model::outputs(Batch& batch) {
  if (!CAPSTAN_HAS(vtable_, outputs)) {
    throw RuntimeFault("model '" + description_ +
                       "' gives no outputs beside its loss. Give its module a function outputs(const "
                       "capstan::sdk::BatchView&), which returns named tensors.");
  }
  struct Taken {
    std::map<std::string, at::Tensor> outputs;
    std::string twice, undefined;
  } taken;
  const auto take = [](void* ctx, capstan_str name, capstan_tensor tensor) {
    auto& all = *static_cast<Taken*>(ctx);
    if (!tensor || !tensor_of(tensor).defined()) {
      all.undefined = as_view(name);
    } else if (!all.outputs.emplace(std::string(as_view(name)), tensor_of(tensor)).second) {
      all.twice = as_view(name);
    }
  };
  const std::string where = "model '" + description_ + "', outputs";
  call_plugin(function("outputs"), where,
              [&](capstan_error* error) { return vtable_->outputs(self_, &batch, &taken, take, error); });
  if (!taken.undefined.empty()) throw PluginError(where + ": gives no tensor under '" + taken.undefined + "'.");
  if (!taken.twice.empty()) throw PluginError(where + ": gives '" + taken.twice + "' twice. Names must differ.");
  return std::move(taken.outputs);
}

DecodeFunctions Model::decode_functions() const {
  if (!CAPSTAN_HAS(vtable_, begin_decode) || !CAPSTAN_HAS(vtable_, decode) || !CAPSTAN_HAS(vtable_, end_decode)) {
    throw ConfigError(
        "capstan.model: model '" + description_ +
        "' cannot continue a text: it has no function decode. Use a model that has one, or give its module "
        "decode(ids, cache).");
  }
  return {vtable_, self_, owner_->component.get(), description_};
}

void Model::set_training(bool on) {
  call_plugin(function("training"), "model '" + description_ + "', training",
              [&](capstan_error* error) { return vtable_->training(self_, on ? 1 : 0, error); });
}

Json Model::describe() const {
  if (!CAPSTAN_HAS(vtable_, describe)) return Json::object();
  return Json::parse(
      plugin_text(function("describe"), "model '" + description_ + "', describe",
                  [&](capstan_sink* sink, capstan_error* error) { return vtable_->describe(self_, sink, error); }));
}

}  // namespace capstan
