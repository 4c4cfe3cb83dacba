#include <algorithm>
#include <set>

#include "core/registry/plugin_index.hpp"
#include "core/text/nearest.hpp"

namespace capstan {
namespace {

std::string with_article(std::string_view kind) {
  const bool vowel = !kind.empty() && std::string_view("aeiou").find(kind.front()) != std::string_view::npos;
  return (vowel ? "an " : "a ") + std::string(kind);
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const auto& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

}  // namespace

std::string PluginIndex::missing_text(std::string_view where, std::string_view kind, std::string_view type,
                                      std::string_view device) const {
  return std::string(where) + ": " + missing_reason(kind, type, device);
}

std::string PluginIndex::missing_reason(std::string_view kind, std::string_view type, std::string_view device) const {
  std::set<std::string> types;
  std::vector<std::string> names;  // aliases too
  std::set<std::string> other_kinds;
  std::set<std::string> other_devices;
  for (const IndexedPlugin& plugin : plugins()) {
    for (const ComponentManifest& component : plugin.manifest.components) {
      if (find(component.kind, type, component.device).component == &component) {
        (component.kind == kind ? other_devices : other_kinds)
            .insert(component.kind == kind ? component.device : with_article(component.kind));
      }
      if (component.kind != kind || !component.runs_on(device)) continue;
      types.insert(component.type);
      names.push_back(component.type);
      names.insert(names.end(), component.aliases.begin(), component.aliases.end());
    }
  }

  std::string text = "no plugin provides " + with_article(kind) + " '" + std::string(type) + "'";
  if (!other_devices.empty()) text += " for this device, only for " + *other_devices.begin();
  if (other_devices.empty() && !other_kinds.empty()) text += " (there is " + *other_kinds.begin() + " of that name)";
  text += ".";
  if (const auto near = nearest_name(type, names); near && other_devices.empty()) {
    for (const IndexedPlugin& plugin : plugins()) {
      const auto& components = plugin.manifest.components;
      if (std::any_of(components.begin(), components.end(), [&](const ComponentManifest& component) {
            return component.kind == kind &&
                   (component.type == *near || std::count(component.aliases.begin(), component.aliases.end(), *near));
          })) {
        text += " Did you mean '" + *near + "' (" + plugin.manifest.name + " " + plugin.manifest.version + ")?";
        break;
      }
    }
  }
  text += " Available: " + (types.empty() ? "none" : joined({types.begin(), types.end()})) + ".";

  return text + searched_text();
}

std::string PluginIndex::searched_text() const {
  std::vector<std::string> searched;
  for (const SearchedFolder& folder : folders()) {
    searched.push_back(folder.path.string() + " (" +
                       (!folder.problem.empty()
                            ? folder.problem
                            : std::to_string(folder.plugins) + (folder.plugins == 1 ? " plugin" : " plugins")) +
                       ")");
  }
  return "\n  looked in: " + (searched.empty() ? "no folder" : joined(searched)) + refused_text();
}

std::string PluginIndex::refused_text() const {
  std::string text;
  for (const RejectedPlugin& plugin : rejected()) text += "\n  refused: " + plugin.reason;
  return text;
}

}  // namespace capstan
