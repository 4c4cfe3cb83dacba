#pragma once

#include <functional>
#include <string>
#include <vector>

#include "capstan/plugin.h"
#include "core/components/layer_chain.hpp"
#include "core/registry/plugin_call.hpp"

namespace capstan::testing {

/// Stands where the engine's observers would wrap the layers of a model: set it as `batch.layers`.
class TestLayers : public LayerHost {
 public:
  using Wrap = std::function<capstan_tensor(const capstan_layer_call&, const capstan_inner&)>;

  /// Null: layers just run.
  Wrap wrap;
  std::vector<std::string> seen;

  void run(const capstan_layer_call& call, const capstan_inner& inner, capstan_tensor* out) override {
    seen.emplace_back(as_view(call.name));
    *out = wrap ? wrap(call, inner) : run_inner(call, inner, call.hidden);
  }

  /// The layer within, with other hidden states and the arguments of the call.
  static capstan_tensor run_inner(const capstan_layer_call& call, const capstan_inner& inner, capstan_tensor hidden) {
    capstan_tensor out = nullptr;
    call_plugin("inner", [&](capstan_error* error) {
      return inner.run(inner.ctx, hidden, call.arguments, call.argument_count, &out, error);
    });
    return out;
  }
};

}  // namespace capstan::testing
