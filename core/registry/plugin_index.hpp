#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/registry/manifest.hpp"

namespace capstan {

/// One folder that was searched, and why.
struct SearchedFolder {
  std::filesystem::path path;
  std::string origin;  // "--plugin-path", "capstan.plugins.path", "CAPSTAN_PLUGIN_PATH", "user", "installed"
  int plugins = 0;
  std::string problem;  // "does not exist", "refused"; empty when it was read
};

struct IndexedPlugin {
  std::filesystem::path file;
  PluginManifest manifest;
};

struct RejectedPlugin {
  std::filesystem::path file;
  std::string reason;  // a whole sentence that opens with the file's path
};

/// A component and the plugin that provides it. Valid as long as the index it came from, or a copy of it.
struct ComponentRef {
  const IndexedPlugin* plugin = nullptr;
  const ComponentManifest* component = nullptr;
  explicit operator bool() const { return component != nullptr; }
};

/// What is installed, known from manifests alone: nothing is loaded or run. Immutable after `scan`; copies share what
/// they hold, so copying is cheap and keeps every ComponentRef valid.
class PluginIndex {
 public:
  /// An index of nothing.
  PluginIndex();

  /// Folders from the command line and the configuration come first, then $CAPSTAN_PLUGIN_PATH, the user's folder where
  /// it is there, and the folder beside libcapstan_config.so (<prefix>/lib/capstan/plugins). Relative folders are taken
  /// from the working directory as they are written; the working directory itself is never searched unasked.
  static PluginIndex scan(const std::vector<std::pair<std::filesystem::path, std::string>>& folders_and_origins = {});

  /// One folder alone, and one level below.
  static PluginIndex scan_only(const std::filesystem::path& folder);

  /// What these plugins provide, wherever they came from.
  static PluginIndex of(std::vector<IndexedPlugin> plugins);

  /// The first that provides it, the type or an alias in any letter case.
  ComponentRef find(std::string_view kind, std::string_view type, std::string_view device = "cpu") const;

  /// The first model that takes a config.json of this model type.
  ComponentRef find_model_type(std::string_view model_type) const;
  /// All model types that find_model_type() finds a model for, in the order of the alphabet.
  std::vector<std::string> model_types() const;

  /// "optimizer.type: no plugin provides an optimizer 'Lyon'. Did you mean 'Lion' (acme-lion 1.2.0)? Available: ..."
  /// with the folders looked in, and why each rejected file was refused. `where` opens it: "optimizer.type".
  std::string missing_text(std::string_view where, std::string_view kind, std::string_view type,
                           std::string_view device = "cpu") const;
  /// The same without `where`.
  std::string missing_reason(std::string_view kind, std::string_view type, std::string_view device = "cpu") const;
  /// "\n  looked in: ..." and refused_text().
  std::string searched_text() const;
  /// "\n  refused: ..." for each rejected file, any of which may be the one that is missing.
  std::string refused_text() const;

  const std::vector<IndexedPlugin>& plugins() const { return contents_->plugins; }
  const std::vector<RejectedPlugin>& rejected() const { return contents_->rejected; }
  const std::vector<SearchedFolder>& folders() const { return contents_->folders; }
  /// (hidden, winner): components that an earlier one of the same key hides.
  const std::vector<std::pair<ComponentRef, ComponentRef>>& shadowed() const { return contents_->shadowed; }
  /// Sentences for the log: folders and files that a group may write to, components that are hidden.
  const std::vector<std::string>& warnings() const { return contents_->warnings; }

 private:
  struct Contents {
    std::vector<IndexedPlugin> plugins;
    std::vector<RejectedPlugin> rejected;
    std::vector<SearchedFolder> folders;
    std::vector<std::pair<ComponentRef, ComponentRef>> shadowed;
    std::vector<std::string> warnings;

    ComponentRef find(std::string_view kind, std::string_view type, std::string_view device) const;
    ComponentRef find_model_type(std::string_view model_type) const;
  };

  explicit PluginIndex(std::shared_ptr<const Contents> contents) : contents_(std::move(contents)) {}
  class Scanner;

  std::shared_ptr<const Contents> contents_;
};

/// The folder of the plugins that are installed with this library.
std::filesystem::path installed_plugin_folder();

/// The folder of the device that is emulated on every machine, which no search finds by itself. It may not be there.
std::filesystem::path emulated_device_folder();

/// Where `capstan plugins install` puts plugins: $XDG_DATA_HOME/capstan/plugins, or ~/.local/share/capstan/plugins.
/// Empty for a user without $HOME.
std::filesystem::path user_plugin_folder();

/// Throws PluginError for a file whose name is not libcapstan_*.so, which no search finds.
void require_plugin_name(const IndexedPlugin& plugin);

/// The manifest of one file, after the checks that come before loading: trust, ELF, manifest, versions. Throws
/// PluginError.
IndexedPlugin read_plugin(const std::filesystem::path& file);

}  // namespace capstan
