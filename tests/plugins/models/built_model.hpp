#pragma once

#include <string>

#include "core/engine/initialize.hpp"
#include "core/model/model.hpp"
#include "core/registry/registry.hpp"

namespace capstan::testing {

/// A model of this build's plugins. `params` must be complete.
inline Model built_model(const std::string& type, const Json& params) {
  const PluginIndex plugins = PluginIndex::scan();
  return Model(Registry(plugins).create(type, "model", type, params, model_host()));
}

inline at::Tensor parameter(const Model& model, std::string_view name) {
  for (const NamedTensor& item : model.parameters()) {
    if (item.name == name) return item.tensor;
  }
  return {};
}

}  // namespace capstan::testing
