#include "core/config/resolve/acting_component.hpp"

#include <algorithm>
#include <string_view>

#include "core/config/resolve/switched_sections.hpp"

namespace capstan {
namespace {

/// True when the component gets the key: its section is the key itself, or hands it on as a switch or a parameter.
bool takes(const ComponentManifest& component, std::string_view path) {
  if (!path.starts_with(component.section) || !has_switch(component)) return false;
  path.remove_prefix(component.section.size());
  if (path.empty() || path == ".enabled") return true;
  if (path.front() != '.') return false;
  const std::string_view name = path.substr(1, path.find('.', 1) - 1);
  return std::any_of(component.params.begin(), component.params.end(),
                     [&](const KeySpec& param) { return param.name == name; });
}

}  // namespace

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
  return reader + (node.has(kStage3)    ? ", at stage 3 with several processes"
                   : node.has(kSeveral) ? ", with several processes"
                                        : "");
}

}  // namespace capstan
