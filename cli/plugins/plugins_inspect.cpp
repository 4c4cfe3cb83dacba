#include <filesystem>
#include <system_error>

#include "cli/commands.hpp"
#include "cli/plugins/plugin_text.hpp"
#include "cli/program.hpp"
#include "cli/version.hpp"
#include "core/errors.hpp"
#include "core/log.hpp"
#include "core/registry/torch_tier.hpp"

namespace capstan::cli {
namespace {

/// The manifest alone, whoever may write to the file: nothing of it is going to be loaded.
PluginManifest read_manifest_only(const std::string& file) {
  std::string bytes = read_elf_section(file, ".capstan.manifest");
  while (!bytes.empty() && bytes.back() == '\0') bytes.pop_back();
  return PluginManifest::parse(bytes, file);
}

}  // namespace

int plugins_inspect(const PluginsInspectArguments& arguments) {
  IndexedPlugin plugin;
  std::error_code error;
  if (!std::filesystem::exists(arguments.file, error)) {
    throw PluginError(arguments.file +
                      ": there is no such file. 'capstan plugins list' shows the files of all plugins that are found.");
  }
  if (arguments.manifest_only) {
    plugin.manifest = read_manifest_only(arguments.file);
  } else {
    plugin = read_plugin(arguments.file);
    print(arguments.json ? plugin.manifest.to_json().dump(2) + "\n" : plugin_text(plugin));
  }
  for (const std::string& warning : plugin.manifest.warnings) log::warning(arguments.file + ": " + warning);
  // The build id of a pinned plugin is compared when it is loaded: it may be for another machine.
  const TorchIdentity torch{built_with().torch_version, ""};
  if (plugin.manifest.tier != PluginManifest::Tier::kStable) return 0;
  const std::string mismatch = torch_mismatch(arguments.file, plugin.manifest, torch);
  if (!mismatch.empty()) throw PluginError(mismatch);
  return 0;
}

}  // namespace capstan::cli
