#pragma once

#include "core/config/config.hpp"
#include "core/registry/plugin_index.hpp"
#include "core/text/json.hpp"

namespace capstan {

/// The parameters that a chosen component is created with: its own, and capstan.corrections where its schema knows
/// them.
Json component_params(const ComponentChoice& choice, const Config& config, const PluginIndex& plugins);

}  // namespace capstan
