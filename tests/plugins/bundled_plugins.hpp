#pragma once

#include <vector>

#include "core/registry/plugin_index.hpp"

namespace capstan::testing {

/// The plugins that the build makes to be installed, but for those of GPUs: what the folder plugins/ adds, read from
/// the built files. Throws PluginError for a file that the core refuses.
std::vector<IndexedPlugin> bundled_plugins();

}  // namespace capstan::testing
