#pragma once

#include <string>
#include <string_view>

#include "core/config/language/language.hpp"
#include "core/registry/plugin_index.hpp"

namespace capstan {

/// True when the manifest lists a parameter of that name.
bool has_param(const ComponentManifest& component, std::string_view name);

/// What acts on the key at `path`, which is `node`'s with names and indices filled in: an installed plugin that takes
/// it from its section, or the part of the core that the key's row names. Empty when nothing does.
std::string acting_component(const SchemaNode& node, const std::string& path, const PluginIndex& plugins);

}  // namespace capstan
