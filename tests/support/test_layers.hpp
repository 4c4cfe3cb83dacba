#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "capstan/plugin.h"
#include "core/engine/observers.hpp"
#include "core/registry/plugin_call.hpp"

namespace capstan::testing {

/// Stands where the engine's observers would wrap the layers of a model: set it as `batch.layers`.
class TestLayers : public LayerHost {
 public:
  using Wrap = std::function<capstan_tensor(std::string_view name, capstan_tensor hidden, const capstan_inner&)>;

  /// Null: layers just run.
  Wrap wrap;
  std::vector<std::string> seen;

  void run(std::string_view name, capstan_tensor hidden, const capstan_inner& inner, capstan_tensor* out) override {
    seen.emplace_back(name);
    *out = wrap ? wrap(name, hidden, inner) : run_inner(inner, hidden);
  }

  static capstan_tensor run_inner(const capstan_inner& inner, capstan_tensor hidden) {
    capstan_tensor out = nullptr;
    call_plugin("inner", [&](capstan_error* error) { return inner.run(inner.ctx, hidden, &out, error); });
    return out;
  }
};

}  // namespace capstan::testing
