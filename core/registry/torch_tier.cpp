#include "core/registry/torch_tier.hpp"

#include <cstdlib>

namespace capstan {
namespace {

/// Compares "2.9" and "2.11.0" number by number; what is missing is 0.
bool older(std::string_view a, std::string_view b) {
  while (!a.empty() || !b.empty()) {
    const auto take = [](std::string_view& text) {
      const auto dot = std::min(text.find('.'), text.size());
      const long number = std::strtol(std::string(text.substr(0, dot)).c_str(), nullptr, 10);
      text.remove_prefix(std::min(dot + 1, text.size()));
      return number;
    };
    const long left = take(a), right = take(b);
    if (left != right) return left < right;
  }
  return false;
}

std::string build(const std::string& build_id) { return "(build " + build_id.substr(0, 8) + ")"; }

}  // namespace

std::string torch_mismatch(const std::string& file, const PluginManifest& manifest, const TorchIdentity& torch) {
  if (manifest.tier == PluginManifest::Tier::kNone) return "";
  if (torch.version.empty()) {
    return file + ": needs LibTorch, which this program does not use. The engine's programs do.";
  }
  if (manifest.tier == PluginManifest::Tier::kStable) {
    if (!older(torch.version, manifest.torch_min)) return "";
    return file + ": needs LibTorch " + manifest.torch_min + " or newer, this process runs " + torch.version + ".";
  }
  if (manifest.torch_version == torch.version && manifest.torch_build_id == torch.build_id) return "";
  return file + ": pinned to LibTorch " + manifest.torch_version + " " + build(manifest.torch_build_id) +
         ", this process runs " + torch.version + " " + build(torch.build_id) +
         ". Loading it could corrupt tensors silently, so it was not loaded. Rebuild it here, or ask its vendor for a "
         "'stable' build.";
}

}  // namespace capstan
