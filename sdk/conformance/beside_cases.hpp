#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "sdk/conformance/case.hpp"

namespace capstan::conformance {

/// A build of an optimizer for the CPU, and the file that has it.
struct CpuBuild {
  std::filesystem::path plugin;  // absolute
  ComponentManifest component;
};

/// The optimizer of that type for the CPU in a plugin's file. Throws ConfigError where the file has none, PluginError
/// where its manifest cannot be read.
CpuBuild cpu_build(const std::filesystem::path& plugin, const std::string& type);

/// Updates of an optimizer on a device beside those of its build for the CPU.
Cases beside_cases(const ComponentManifest& component, const CpuBuild& cpu);

}  // namespace capstan::conformance
