#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/config/config.hpp"

namespace capstan::cli {

/// A package of Python through which a monitor of Capstan's own works.
struct TrackerPackage {
  const char* plugin;   // the name of the plugin
  const char* monitor;  // its type
  const char* package;
  const char* oldest;  // version that works
};
std::span<const TrackerPackage> tracker_packages();

/// What a Python knows of packages.
struct PythonPackages {
  std::string python;                                // its file; as it was called where it does not start
  std::vector<std::optional<std::string>> versions;  // none: not installed
};
/// Asks the Python that monitors start: python3, or CAPSTAN_PYTHON.
PythonPackages ask_python(const std::vector<std::string>& packages);

/// Why the monitor cannot start, without a full stop; empty where nothing is missing. `version`: of its package.
std::string tracker_fault(const TrackerPackage& tracker, const std::string& python,
                          const std::optional<std::string>& version);
/// "/usr/bin/python3 -m pip install 'wandb>=0.16.0'"
std::string install_command(const TrackerPackage& tracker, const std::string& python);

/// A notice for every monitor of the configuration that would not start. Starts Python where there is such a monitor.
std::vector<Problem> missing_trackers(const Config& config, const PluginIndex& plugins);

}  // namespace capstan::cli
