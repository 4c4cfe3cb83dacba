#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/config/schema.hpp"
#include "core/registry/manifest.hpp"

namespace capstan {

/// One folder that was searched, and why.
struct SearchedFolder {
  std::filesystem::path path;
  std::string origin;  // "--plugin-path", "capstan.plugins.path", "CAPSTAN_PLUGIN_PATH", "installed"
  int plugins = 0;
};

struct IndexedPlugin {
  std::filesystem::path file;
  PluginManifest manifest;
};

struct RejectedPlugin {
  std::filesystem::path file;
  std::string reason;  // a whole sentence that opens with the file's path
};

/// Component `component` of `plugins()[plugin]`.
struct ComponentRef {
  const IndexedPlugin* plugin = nullptr;
  const ComponentManifest* component = nullptr;
  explicit operator bool() const { return component != nullptr; }
};

/// What is installed, known from manifests alone: nothing is loaded or run. Immutable after `scan`.
class PluginIndex {
 public:
  /// Folders from the command line and the configuration come first, then $CAPSTAN_PLUGIN_PATH, then the folder
  /// installed beside libcapstan_config.so (<prefix>/lib/capstan/plugins). Relative folders are taken from the working
  /// directory as they are written; the working directory itself is never searched unasked.
  static PluginIndex scan(const std::vector<std::pair<std::filesystem::path, std::string>>& folders_and_origins = {});

  /// The first that provides it, the type or an alias in any letter case.
  ComponentRef find(std::string_view kind, std::string_view type, std::string_view device = "cpu") const;

  /// "no plugin provides an optimizer 'Lyon'. Did you mean 'Lion' (acme-lion 1.2.0)? Available: ..." with the folders
  /// looked in, and why each rejected file was refused. `where` is the key path that opens it: "optimizer.type".
  std::string missing_text(std::string_view where, std::string_view kind, std::string_view type) const;

  const std::vector<IndexedPlugin>& plugins() const { return plugins_; }
  const std::vector<RejectedPlugin>& rejected() const { return rejected_; }
  const std::vector<SearchedFolder>& folders() const { return folders_; }
  /// (hidden, winner): components that an earlier one of the same key hides.
  const std::vector<std::pair<ComponentRef, ComponentRef>>& shadowed() const { return shadowed_; }
  const std::vector<std::string>& warnings() const { return warnings_; }  // group-writable folders

 private:
  std::vector<IndexedPlugin> plugins_;
  std::vector<RejectedPlugin> rejected_;
  std::vector<SearchedFolder> folders_;
  std::vector<std::pair<ComponentRef, ComponentRef>> shadowed_;
  std::vector<std::string> warnings_;
};

}  // namespace capstan
