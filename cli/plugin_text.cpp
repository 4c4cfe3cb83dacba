#include "cli/plugin_text.hpp"

namespace capstan::cli {

const char* tier_name(PluginManifest::Tier tier) {
  switch (tier) {
    case PluginManifest::Tier::kStable:
      return "stable";
    case PluginManifest::Tier::kPinned:
      return "pinned";
    case PluginManifest::Tier::kNone:
      break;
  }
  return "none";
}

std::string tier_text(const PluginManifest& manifest) {
  switch (manifest.tier) {
    case PluginManifest::Tier::kStable:
      return "stable (LibTorch " + manifest.torch_min + " or newer)";
    case PluginManifest::Tier::kPinned:
      return "pinned to LibTorch " + manifest.torch_version + " (build " + manifest.torch_build_id.substr(0, 8) + ")";
    case PluginManifest::Tier::kNone:
      break;
  }
  return "none (no LibTorch)";
}

PluginIndex scan_plugins(const std::vector<std::string>& plugin_paths) {
  std::vector<std::pair<std::filesystem::path, std::string>> folders;
  for (const std::string& path : plugin_paths) folders.emplace_back(path, "--plugin-path");
  return PluginIndex::scan(folders);
}

std::string component_name(const ComponentManifest& component) {
  const std::string device = component.device == "cpu" ? "" : " (" + component.device + ")";
  return component.kind + " " + component.type + device;
}

}  // namespace capstan::cli
