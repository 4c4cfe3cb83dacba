#pragma once

#include <regex>
#include <string>

#include "core/errors.hpp"
#include "core/registry/manifest.hpp"

namespace capstan::test {

inline constexpr const char* kAbi = "\n[abi]\nplugin = '1.0'\n[abi.torch]\ntier = 'stable'\nmin = '2.11'\n";

inline PluginManifest parse(const std::string& toml) { return PluginManifest::parse(toml, "/p/lib.so"); }

/// The text of the error that a manifest gives, behind "/p/lib.so: ".
inline std::string placed_refusal(const std::string& toml) {
  try {
    parse(toml);
  } catch (const PluginError& error) {
    return std::string(error.what()).substr(std::string("/p/lib.so: ").size());
  }
  return "accepted";
}

/// The text of the error without lines and columns.
inline std::string refusal(const std::string& toml) {
  return std::regex_replace(placed_refusal(toml), std::regex("manifest:[0-9]+:[0-9]+: "), "manifest: ");
}

inline std::string with_component(const std::string& lines) {
  return "schema = 1\nname = 'n'\nversion = '1'\n[[components]]\n" + lines + kAbi;
}

inline std::string with_param(const std::string& param) {
  return with_component("kind = 'monitor'\ntype = 'T'\n[components.params]\np = " + param);
}

}  // namespace capstan::test
