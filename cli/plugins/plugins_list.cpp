#include <algorithm>
#include <tuple>

#include "cli/commands.hpp"
#include "cli/plugins/plugin_text.hpp"
#include "cli/program.hpp"
#include "core/log.hpp"
#include "core/text/table.hpp"

namespace capstan::cli {
namespace {

bool is_shadowed(const PluginIndex& index, const ComponentManifest& component) {
  return std::any_of(index.shadowed().begin(), index.shadowed().end(),
                     [&](const auto& pair) { return pair.first.component == &component; });
}

/// All components in force, by kind and type.
std::vector<ComponentRef> components_of(const PluginIndex& index) {
  std::vector<ComponentRef> found;
  for (const IndexedPlugin& plugin : index.plugins()) {
    for (const ComponentManifest& component : plugin.manifest.components) {
      if (!is_shadowed(index, component)) found.push_back({&plugin, &component});
    }
  }
  std::stable_sort(found.begin(), found.end(), [](const ComponentRef& a, const ComponentRef& b) {
    return std::tie(a.component->kind, a.component->type) < std::tie(b.component->kind, b.component->type);
  });
  return found;
}

Json component_json(const ComponentRef& ref) {
  Json json = Json::object();
  json["kind"] = ref.component->kind;
  json["type"] = ref.component->type;
  Json aliases = Json::array();
  for (const std::string& alias : ref.component->aliases) aliases.push_back(alias);
  json["aliases"] = aliases;
  json["device"] = ref.component->device;
  json["summary"] = ref.component->summary;
  if (!ref.component->model_types.empty()) {
    json["model_types"] = Json(Json::Array(ref.component->model_types.begin(), ref.component->model_types.end()));
  }
  json["plugin"] = ref.plugin->manifest.name;
  json["version"] = ref.plugin->manifest.version;
  json["tier"] = tier_name(ref.plugin->manifest.tier);
  json["file"] = ref.plugin->file.string();
  return json;
}

Json index_json(const PluginIndex& index) {
  Json json = Json::object();
  json["components"] = Json::array();
  for (const ComponentRef& ref : components_of(index)) json["components"].push_back(component_json(ref));
  json["shadowed"] = Json::array();
  for (const auto& [hidden, winner] : index.shadowed()) {
    Json entry = component_json(hidden);
    entry["by"] = winner.plugin->file.string();
    json["shadowed"].push_back(entry);
  }
  json["rejected"] = Json::array();
  for (const RejectedPlugin& plugin : index.rejected()) {
    Json entry = Json::object();
    entry["file"] = plugin.file.string();
    entry["reason"] = plugin.reason;
    json["rejected"].push_back(entry);
  }
  json["folders"] = Json::array();
  for (const SearchedFolder& folder : index.folders()) {
    Json entry = Json::object();
    entry["path"] = folder.path.string();
    entry["origin"] = folder.origin;
    entry["plugins"] = folder.plugins;
    if (!folder.problem.empty()) entry["problem"] = folder.problem;
    json["folders"].push_back(entry);
  }
  return json;
}

/// The models that folders of transformers can be trained with.
std::string model_types_text(const PluginIndex& index) {
  std::string text;
  for (const ComponentRef& ref : components_of(index)) {
    if (ref.component->model_types.empty()) continue;
    text += "  " + ref.component->type + " (" + ref.plugin->manifest.name + "): " + joined(ref.component->model_types) +
            "\n";
  }
  return text.empty() ? "" : "\nModel types of transformers, for --model hf:FOLDER:\n" + text;
}

std::string index_text(const PluginIndex& index) {
  std::vector<std::vector<std::string>> rows = {{"KIND", "TYPE", "PLUGIN", "VERSION", "TIER", "FILE"}};
  for (const ComponentRef& ref : components_of(index)) {
    const PluginManifest& plugin = ref.plugin->manifest;
    const std::string device = ref.component->device == "cpu" ? "" : " (" + ref.component->device + ")";
    rows.push_back({ref.component->kind, ref.component->type + device, plugin.name, plugin.version,
                    tier_name(plugin.tier), ref.plugin->file.string()});
  }
  std::string text = rows.size() > 1 ? table_text(rows) : "No plugins were found.\n";
  text += model_types_text(index);
  if (!index.shadowed().empty()) text += "\nShadowed, because an earlier folder has the same:\n";
  for (const auto& [hidden, winner] : index.shadowed()) {
    text += "  " + component_name(*hidden.component) + " in " + hidden.plugin->file.string() + ", by " +
            winner.plugin->file.string() + "\n";
  }
  if (!index.rejected().empty()) text += "\nRejected:\n";
  for (const RejectedPlugin& plugin : index.rejected()) text += "  " + plugin.reason + "\n";
  text += "\nSearched:\n";
  for (const SearchedFolder& folder : index.folders()) {
    text += "  " + folder.path.string() + " (" + folder.origin + "): " +
            (folder.problem.empty() ? std::to_string(folder.plugins) + (folder.plugins == 1 ? " plugin" : " plugins")
                                    : folder.problem) +
            "\n";
  }
  return text;
}

}  // namespace

int plugins_list(const PluginsListArguments& arguments) {
  const PluginIndex index = scan_plugins(arguments.plugin_paths);
  if (arguments.json) {
    print(index_json(index).dump(2) + "\n");
  } else {
    print(index_text(index));
  }
  return 0;
}

}  // namespace capstan::cli
