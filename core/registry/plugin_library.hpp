#pragma once

#include <optional>

#include "capstan/plugin.h"
#include "core/registry/plugin_index.hpp"
#include "core/registry/sealed_file.hpp"

namespace capstan {

/// Loads a plugin's file, once a process, for ever, says so in the log where somebody brought it, and compares what it
/// says of itself with its manifest. All checks that need no loading were made before. `bytes`, when given, are loaded
/// in place of the file's. Throws PluginError.
const capstan_plugin* load_plugin_library(const IndexedPlugin& plugin, std::optional<SealedFile> bytes = {});

}  // namespace capstan
