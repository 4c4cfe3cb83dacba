#pragma once

#include <string>

#include "core/registry/manifest.hpp"
#include "core/registry/registry.hpp"

namespace capstan {

/// Why a plugin of that tier cannot be loaded beside the LibTorch of this process: a sentence that opens with `file`;
/// empty when it can.
std::string torch_mismatch(const std::string& file, const PluginManifest& manifest, const TorchIdentity& torch);

}  // namespace capstan
