#pragma once

#include <string>

#include "core/config/config.hpp"
#include "core/registry/plugin_index.hpp"
#include "core/text/json.hpp"

namespace capstan {

/// The parameters that a chosen component is created with: its own, and capstan.corrections where its schema knows
/// them.
Json component_params(const ComponentChoice& choice, const Config& config, const PluginIndex& plugins);

/// The parameters of a component that a command line names: checked against its manifest and complete. `where` opens
/// each message: "--metric seqlen". Throws ConfigError with all that is wrong.
Json checked_component_params(const Json& given, const std::string& where, const ComponentManifest& component);

}  // namespace capstan
