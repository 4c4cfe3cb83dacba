#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "capstan/plugin.h"
#include "core/engine/layer_chain.hpp"
#include "core/registry/plugin_call.hpp"

namespace capstan::testing {

/// Stands where the engine's observers would wrap the layers of a model: set it as `batch.layers`.
class TestLayers : public LayerHost {
 public:
  using Wrap = std::function<capstan_tensor(std::string_view name, capstan_tensor hidden, const capstan_inner&)>;
  using WrapCall = std::function<capstan_tensor(const capstan_layer_call&, const capstan_layer_inner&)>;

  /// Null: layers just run.
  Wrap wrap;
  WrapCall wrap_call;
  std::vector<std::string> seen;

  void run(const capstan_layer_call& call, const capstan_layer_inner& inner, capstan_tensor* out) override {
    seen.emplace_back(as_view(call.name));
    if (wrap_call) {
      *out = wrap_call(call, inner);
      return;
    }
    struct Plain {
      const capstan_layer_call& call;
      const capstan_layer_inner& inner;
    } plain{call, inner};
    const capstan_inner without_arguments = {
        sizeof without_arguments, &plain,
        [](void* ctx, capstan_tensor hidden, capstan_tensor* result, capstan_error* error) {
          const auto& self = *static_cast<Plain*>(ctx);
          return self.inner.run(self.inner.ctx, hidden, self.call.arguments, self.call.argument_count, result, error);
        }};
    *out = wrap ? wrap(as_view(call.name), call.hidden, without_arguments) : run_inner(without_arguments, call.hidden);
  }

  static capstan_tensor run_inner(const capstan_inner& inner, capstan_tensor hidden) {
    capstan_tensor out = nullptr;
    call_plugin("inner", [&](capstan_error* error) { return inner.run(inner.ctx, hidden, &out, error); });
    return out;
  }
};

}  // namespace capstan::testing
