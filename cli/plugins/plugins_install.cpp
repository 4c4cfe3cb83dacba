#include <algorithm>

#include "cli/commands.hpp"
#include "cli/plugins/plugin_text.hpp"
#include "cli/program.hpp"
#include "core/errors.hpp"
#include "core/registry/plugin_install.hpp"
#include "core/registry/plugin_pin.hpp"

namespace capstan::cli {
namespace {

namespace fs = std::filesystem;

fs::path folder_of(const std::string& chosen) {
  const fs::path folder = chosen.empty() ? user_plugin_folder() : fs::absolute(chosen);
  if (folder.empty()) {
    throw RuntimeFault(
        "the environment has no HOME, under which the user's plugins are. Name a folder: --to DIR, or --from DIR to "
        "remove.");
  }
  return folder;
}

/// What configurations get for the types of a plugin, and where another is in the way.
std::string use_text(const PluginIndex& index, const IndexedPlugin& plugin) {
  std::string text;
  for (const ComponentManifest& component : plugin.manifest.components) {
    const ComponentRef used = index.find(component.kind, component.type, component.device);
    if (used && !fs::equivalent(used.plugin->file, plugin.file)) {
      text += "  " + component_name(component) + " is hidden by " + used.plugin->file.string() +
              ", which comes first in the search path\n";
    }
    for (const auto& [hidden, winner] : index.shadowed()) {
      if (hidden.component->kind != component.kind || hidden.component->type != component.type) continue;
      if (!fs::equivalent(winner.plugin->file, plugin.file)) continue;
      text += "  " + component_name(component) + " hides that of " + hidden.plugin->file.string() + "\n";
    }
  }
  return text;
}

bool is_searched(const PluginIndex& index, const fs::path& folder) {
  std::error_code error;
  return std::any_of(index.folders().begin(), index.folders().end(), [&](const SearchedFolder& searched) {
    return searched.problem.empty() && fs::equivalent(searched.path, folder, error);
  });
}

}  // namespace

int plugins_install(const PluginsInstallArguments& arguments) {
  const fs::path folder = folder_of(arguments.folder);
  const auto installed = install_plugins(arguments.source, folder, arguments.force);
  const PluginIndex index = PluginIndex::scan();
  std::string text;
  for (const InstalledPlugin& one : installed) {
    text += "installed " + plugin_text(one.plugin);
    text += "\n  SHA-256 " + one.sha256 + ", pinned in " + pin_of(one.plugin.file).string() +
            ": no other bytes are loaded\n";
    text += use_text(index, one.plugin);
  }
  text += "It is code that runs in Capstan's process with all your rights. ";
  text += "'capstan plugins remove " + installed.front().plugin.manifest.name + "' takes it away.\n";
  if (!is_searched(index, folder)) {
    text += "The folder is searched with --plugin-path " + folder.string() +
            ", and always once it is in CAPSTAN_PLUGIN_PATH.\n";
  }
  print(text);
  return 0;
}

int plugins_remove(const PluginsRemoveArguments& arguments) {
  std::string text;
  for (const fs::path& file : remove_plugins(arguments.name, folder_of(arguments.folder))) {
    text += "removed " + file.string() + "\n";
  }
  print(text);
  return 0;
}

}  // namespace capstan::cli
