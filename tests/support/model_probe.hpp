#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "capstan/plugin.h"
#include "core/engine/batch.hpp"
#include "core/registry/plugin_call.hpp"

namespace capstan::testing {

/// A model seen through its C interface.
class ModelProbe {
 public:
  ModelProbe(const capstan_model* vtable, void* self) : vtable_(vtable), self_(self) {
    capstan_visitor visitor{sizeof visitor, this, &take_tensor, &take_module};
    call_plugin("visit", [&](capstan_error* error) { return vtable_->visit(self_, &visitor, error); });
  }

  at::Tensor forward(Batch& batch) const {
    capstan_tensor handle = nullptr;
    call_plugin("forward", [&](capstan_error* error) { return vtable_->forward(self_, &batch, &handle, error); });
    const std::unique_ptr<at::Tensor> loss(reinterpret_cast<at::Tensor*>(handle));
    return *loss;
  }

  void training(bool on) const {
    call_plugin("training", [&](capstan_error* error) { return vtable_->training(self_, on, error); });
  }

  std::string describe() const {
    capstan_sink sink;
    call_plugin("describe", [&](capstan_error* error) { return vtable_->describe(self_, &sink, error); });
    return sink.text;
  }

  at::Tensor parameter(const std::string& name) const {
    for (const auto& [key, tensor] : parameters) {
      if (key == name) return tensor;
    }
    return {};
  }

  std::vector<std::pair<std::string, at::Tensor>> parameters, buffers;
  std::vector<std::pair<std::string, std::string>> modules;  // path, class

 private:
  static void take_tensor(void* ctx, capstan_str name, capstan_tensor tensor, capstan_role role) {
    auto& probe = *static_cast<ModelProbe*>(ctx);
    auto& list = role == CAPSTAN_ROLE_BUFFER ? probe.buffers : probe.parameters;
    list.emplace_back(as_view(name), *reinterpret_cast<at::Tensor*>(tensor));
  }
  static void take_module(void* ctx, capstan_str path, capstan_str class_name) {
    static_cast<ModelProbe*>(ctx)->modules.emplace_back(as_view(path), as_view(class_name));
  }

  const capstan_model* vtable_;
  void* self_;
};

}  // namespace capstan::testing
