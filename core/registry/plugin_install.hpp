#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "core/registry/plugin_index.hpp"

namespace capstan {

/// A plugin file that was copied into a folder of the search path, with a pin of its bytes beside it.
struct InstalledPlugin {
  IndexedPlugin plugin;  // where it is now
  std::string sha256;
};

/// Copies a plugin's file, or all files libcapstan_*.so of a folder and one level below, into `folder`, which is made
/// where it is not there. All files are looked at first, as before loading. Each is copied aside and renamed, so that a
/// copy that is interrupted leaves no half of a plugin, and its SHA-256 is written to <file>.sha256, which Registry
/// compares. Unless `replace`, a file that exists is a RuntimeFault, and so is another file in `folder` that provides
/// the same type. Throws PluginError for what is no plugin or is not trusted, RuntimeFault for what the disk refuses.
std::vector<InstalledPlugin> install_plugins(const std::filesystem::path& source, const std::filesystem::path& folder,
                                             bool replace);

/// Removes the plugins of that package name, or the file of that name, and their pins, from `folder`. Returns the files
/// that are gone. Throws PluginError when there are none.
std::vector<std::filesystem::path> remove_plugins(const std::string& name, const std::filesystem::path& folder);

}  // namespace capstan
