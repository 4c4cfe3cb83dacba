#pragma once

#include "capstan/plugin.h"
#include "core/registry/plugin_index.hpp"

namespace capstan {

/// Loads a plugin's file, once a process, for ever, and compares what it says of itself with its manifest. All checks
/// that need no loading were made before. Throws PluginError.
const capstan_plugin* load_plugin_library(const IndexedPlugin& plugin);

}  // namespace capstan
