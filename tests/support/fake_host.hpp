#pragma once

#include <dlfcn.h>

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "capstan/plugin.h"
#include "core/config/json.hpp"
#include "core/engine/batch.hpp"
#include "core/engine/observers.hpp"
#include "core/registry/host.hpp"
#include "core/registry/plugin_call.hpp"

namespace capstan::testing {

/// A host without an engine: errors, JSON, batches, and layers that a test may wrap.
class FakeHost : public LayerHost {
 public:
  using WrapLayer = std::function<capstan_tensor(std::string_view name, capstan_tensor hidden, const capstan_inner&)>;

  FakeHost() {
    table_.log = [](void*, int, capstan_str) {};
    table_.batch_tensor = &batch_tensor;
    table_.batch_number = &batch_number;
    table_.layer = &run_layer;
  }

  const capstan_host* get() const { return &table_; }

  /// Null: layers just run.
  WrapLayer wrap_layer;
  std::vector<std::string> layers_seen;

  void run(std::string_view name, capstan_tensor hidden, const capstan_inner& inner, capstan_tensor* out) override {
    layers_seen.emplace_back(name);
    *out = wrap_layer ? wrap_layer(name, hidden, inner) : run_inner(inner, hidden);
  }

  static capstan_tensor run_inner(const capstan_inner& inner, capstan_tensor hidden) {
    capstan_tensor out = nullptr;
    call_plugin("inner", [&](capstan_error* error) { return inner.run(inner.ctx, hidden, &out, error); });
    return out;
  }

 private:
  static capstan_status fail(capstan_error* error, std::string text) {
    error->text = std::move(text);
    return CAPSTAN_FAILED;
  }

  static capstan_status batch_tensor(capstan_batch* batch, capstan_str name, capstan_tensor* out,
                                     capstan_error* error) {
    const auto found = batch->tensors.find(as_view(name));
    if (found == batch->tensors.end()) return fail(error, "no '" + std::string(as_view(name)) + "' in the batch");
    *out = reinterpret_cast<capstan_tensor>(&found->second);
    return CAPSTAN_OK;
  }

  static capstan_status batch_number(capstan_batch* batch, capstan_str name, double* out, int* found, capstan_error*) {
    const auto number = batch->numbers.find(as_view(name));
    *found = number != batch->numbers.end();
    if (*found) *out = number->second;
    return CAPSTAN_OK;
  }

  static capstan_status run_layer(capstan_batch* batch, capstan_str name, capstan_tensor hidden,
                                  const capstan_inner* inner, capstan_tensor* out, capstan_error* error) {
    if (!batch->layers) return inner->run(inner->ctx, hidden, out, error);
    try {
      batch->layers->run(as_view(name), hidden, *inner, out);
      return CAPSTAN_OK;
    } catch (const std::exception& thrown) {
      return fail(error, thrown.what());
    }
  }

  capstan_host table_ = make_host();
};

/// A component taken straight from a built plugin: no registry, so `params` must be complete.
class LoadedComponent {
 public:
  LoadedComponent(const std::string& file, const capstan_host* host, const Json& params) {
    void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library) throw std::runtime_error(dlerror());
    const auto entry = reinterpret_cast<decltype(&capstan_plugin_v1)>(dlsym(library, "capstan_plugin_v1"));
    descriptor_ = entry()->components[0];
    const std::string text = params.dump();
    capstan_error error;
    if (descriptor_->create(host, as_str(text), &self_, &error) != CAPSTAN_OK) throw std::runtime_error(error.text);
  }
  ~LoadedComponent() { descriptor_->destroy(self_); }
  LoadedComponent(const LoadedComponent&) = delete;
  LoadedComponent& operator=(const LoadedComponent&) = delete;

  template <class Vtable>
  const Vtable* vtable() const {
    return static_cast<const Vtable*>(descriptor_->vtable);
  }
  void* self() const { return self_; }

 private:
  const capstan_component* descriptor_ = nullptr;
  void* self_ = nullptr;
};

}  // namespace capstan::testing
