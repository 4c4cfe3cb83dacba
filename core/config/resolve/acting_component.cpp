#include "core/config/resolve/acting_component.hpp"

#include <algorithm>
#include <string_view>

#include "core/config/resolve/switched_sections.hpp"

namespace capstan {
namespace {

/// True when the key goes to the store of the device nvme.
bool goes_to_nvme(const ComponentManifest& component, std::string_view path) {
  if (component.kind != "offload" || !component.answers_to("nvme")) return false;
  for (const std::string_view section :
       {"aio.", "zero_optimization.offload_optimizer.", "zero_optimization.offload_param."}) {
    if (path.starts_with(section)) return has_param(component, path.substr(section.size()));
  }
  return false;
}

/// True when the key stands elsewhere and goes to the component's section.
bool is_handed_on(const ComponentManifest& component, std::string_view path) {
  for (const HandedOn& key : handed_on()) {
    const std::string_view from = key.path;
    if (component.section != key.section || !path.starts_with(from)) continue;
    if (path.size() == from.size()) return *key.param == '\0' || has_param(component, key.param);
    if (path[from.size()] == '.' && has_param(component, path.substr(from.size() + 1))) return true;
  }
  return false;
}

/// True when the component gets the key: its section is the key itself, or hands it on as a switch or a parameter.
bool takes(const ComponentManifest& component, std::string_view path) {
  if (goes_to_nvme(component, path) || is_handed_on(component, path)) return true;
  if (!path.starts_with(component.section) || !has_switch(component)) return false;
  path.remove_prefix(component.section.size());
  if (path.empty() || path == ".enabled") return true;
  if (path.front() != '.') return false;
  return has_param(component, path.substr(1, path.find('.', 1) - 1));
}

}  // namespace

bool has_param(const ComponentManifest& component, std::string_view name) {
  return std::any_of(component.params.begin(), component.params.end(),
                     [&](const KeySpec& param) { return param.name == name; });
}

std::string acting_component(const SchemaNode& node, const std::string& path, const PluginIndex& plugins) {
  for (const auto& plugin : plugins.plugins()) {
    for (const auto& component : plugin.manifest.components) {
      if (!takes(component, path)) continue;
      return "the " + component.kind + " '" + component.type + "' (" + plugin.manifest.name + " " +
             plugin.manifest.version + ")";
    }
  }
  if (!node.key || node.has(kNoEffect)) return "";
  const std::string reader = node.key->reader;
  if (reader.empty()) return "";
  const bool several = node.has(kSeveral);
  if (node.has(kStage3)) {
    return reader + ", at stage 3 with several processes" + (several ? "" : " or with parameters offloaded");
  }
  return reader + (several ? ", with several processes" : "");
}

}  // namespace capstan
