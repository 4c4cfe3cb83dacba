#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace capstan::conformance {

/// What the dynamic tables of a shared library say.
struct DynamicTables {
  std::vector<std::string> exported, undefined;  // mangled, sorted
  std::string run_path;                          // DT_RUNPATH or DT_RPATH
};

/// Throws PluginError for damaged tables.
DynamicTables read_dynamic_tables(const std::filesystem::path& library);

}  // namespace capstan::conformance
