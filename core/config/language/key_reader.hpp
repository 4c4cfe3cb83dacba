#pragma once

#include <string>

#include "core/registry/plugin_index.hpp"

namespace capstan {

/// What acts on a key: a part of the core or an installed plugin. Empty when nothing does.
std::string key_reader(const std::string& path, const PluginIndex& plugins);

}  // namespace capstan
