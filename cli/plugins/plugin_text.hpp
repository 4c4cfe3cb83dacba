#pragma once

#include <string>
#include <vector>

#include "core/registry/plugin_index.hpp"

namespace capstan::cli {

/// "stable", "pinned", "none".
const char* tier_name(PluginManifest::Tier tier);

/// "stable (LibTorch 2.11 or newer)", "pinned to LibTorch 2.11.0 (build fb74ba78)", "none (no LibTorch)".
std::string tier_text(const PluginManifest& manifest);

/// The index of --plugin-path, $CAPSTAN_PLUGIN_PATH and the installed folder.
PluginIndex scan_plugins(const std::vector<std::string>& plugin_paths);

/// A component's key: "optimizer AdamW".
std::string component_name(const ComponentManifest& component);

/// All that a plugin's file says of itself: name, tier, the libraries that it loads, and for each component what it
/// attaches to, its traits, states and parameters.
std::string plugin_text(const IndexedPlugin& plugin);

}  // namespace capstan::cli
