#pragma once

#include <stdexcept>

#include "tests/support/temporary_folder.hpp"

namespace capstan {

inline std::filesystem::path test_plugin(const std::string& name) {
  return std::filesystem::path(CAPSTAN_TEST_BUILD_DIR) / "tests" / "registry_plugins" /
         ("libcapstan_monitor_" + name + ".so");
}

/// A copy with every `from` replaced by `to`, of the same length so that nothing moves.
inline std::filesystem::path patched_copy(const std::filesystem::path& plugin, const std::filesystem::path& to_file,
                                          std::string_view from = "", std::string_view to = "") {
  std::string bytes = read_bytes(plugin);
  if (from.size() != to.size()) throw std::logic_error("a patch must keep the length");
  std::size_t count = 0;
  for (auto at = bytes.find(from); !from.empty() && at != std::string::npos; at = bytes.find(from, at + 1)) {
    bytes.replace(at, from.size(), to);
    ++count;
  }
  if (!from.empty() && count == 0) throw std::logic_error("nothing to patch: " + std::string(from));
  write_bytes(to_file, bytes);
  return to_file;
}

}  // namespace capstan
