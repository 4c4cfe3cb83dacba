#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/config/config.hpp"

namespace capstan::cli {

/// A package of Python that a component works through, as its manifest names it.
struct PythonPackage {
  std::string name, oldest;  // "wandb", "0.16.0"; `oldest` may be empty: any version
};
/// Splits "wandb>=0.16.0".
PythonPackage python_package(const std::string& manifest);

/// What a Python knows of packages.
struct PythonPackages {
  std::string python;                                // its file; as it was called where it does not start
  std::vector<std::optional<std::string>> versions;  // none: not installed
};
/// Asks the Python that monitors start: python3, or CAPSTAN_PYTHON.
PythonPackages ask_python(const std::vector<std::string>& packages);

/// Why a component cannot start, without a full stop; empty where nothing is missing. `version`: of its package.
std::string package_fault(const PythonPackage& package, const std::string& python,
                          const std::optional<std::string>& version);
/// "/usr/bin/python3 -m pip install 'wandb>=0.16.0'"
std::string install_command(const PythonPackage& package, const std::string& python);

/// A notice for every monitor of the configuration that would not start. Starts Python where a monitor needs a package.
std::vector<Problem> missing_trackers(const Config& config, const PluginIndex& plugins);

}  // namespace capstan::cli
