#include "cli/plugins/plugin_text.hpp"

#include "core/config/language/language.hpp"
#include "core/config/resolve/switched_sections.hpp"
#include "core/text/table.hpp"

namespace capstan::cli {
namespace {

/// What a parameter may be, in words: "> 0, at most 1", "one of mean, sum".
std::string range_text(const KeySpec& spec) {
  const auto number = [](double value) { return Json(value).dump(); };
  std::vector<std::string> parts;
  if (spec.minimum) parts.push_back((spec.exclusive_minimum ? "above " : "at least ") + number(*spec.minimum));
  if (spec.maximum) parts.push_back((spec.exclusive_maximum ? "below " : "at most ") + number(*spec.maximum));
  std::vector<std::string> choices;
  for (const Json& choice : spec.choices) choices.push_back(choice.is_string() ? choice.as_string() : choice.dump());
  if (!choices.empty()) parts.push_back("one of " + joined(choices));
  return joined(parts);
}

std::string params_text(const ComponentManifest& component, const Json& manifest_params) {
  std::vector<std::vector<std::string>> rows;
  for (const KeySpec& spec : component.params) {
    const Json& type = manifest_params.at(spec.name).at("type");
    std::vector<std::string> types;
    if (type.is_string()) types.push_back(type.as_string());
    for (std::size_t i = 0; i < type.size(); ++i) types.push_back(type.as_array()[i].as_string());
    rows.push_back({"    " + spec.name, joined(types, " or "),
                    spec.required   ? "required"
                    : spec.fallback ? "default " + spec.fallback->dump()
                                    : "optional",
                    range_text(spec), spec.summary});
  }
  return rows.empty() ? "" : "  parameters:\n" + table_text(rows);
}

std::string state_text(const ComponentManifest& component) {
  std::vector<std::string> names;
  for (const StateSpec& state : component.state) names.push_back(state.name + " (" + state.dtype + ")");
  return names.empty() ? "" : "  state: " + joined(names) + "\n";
}

std::string rules_text(const ComponentManifest& component) {
  std::vector<std::vector<std::string>> rows;
  for (const ParamRule& rule : component.rules)
    rows.push_back({"    " + rule.check, rule.only_warns ? "warning" : "error", rule.message});
  return rows.empty() ? "" : "  rules:\n" + table_text(rows);
}

/// What the section does that the manifest names.
std::string section_text(const ComponentManifest& component) {
  if (component.section.empty()) return "";
  const std::string section = "the section \"" + component.section + "\"";
  return find_key(component.section) && !has_switch(component)
             ? "  never selected by " + section + ", which switches on no " + component.kind + "\n"
             : "  selected by " + section + "\n";
}

std::string component_text(const ComponentManifest& component, const Json& json) {
  std::string text = "\n" + component_name(component);
  if (!component.aliases.empty()) text += ", also " + joined(component.aliases);
  text += "\n";
  if (!component.summary.empty()) text += "  " + component.summary + "\n";
  text += section_text(component);
  if (!component.traits.empty()) text += "  traits: " + joined(component.traits) + "\n";
  if (!component.attach.empty()) text += "  attaches to: " + joined(component.attach) + "\n";
  if (component.attaches("layers")) text += "  layer order: " + std::to_string(component.layer_order) + "\n";
  if (component.kind == "compression") text += "  order: " + std::to_string(component.order) + "\n";
  if (!component.model_types.empty()) text += "  model types: " + joined(component.model_types) + "\n";
  return text + state_text(component) + params_text(component, json.at("params")) + rules_text(component);
}

}  // namespace

const char* tier_name(PluginManifest::Tier tier) {
  switch (tier) {
    case PluginManifest::Tier::kStable:
      return "stable";
    case PluginManifest::Tier::kPinned:
      return "pinned";
    case PluginManifest::Tier::kNone:
      break;
  }
  return "none";
}

std::string tier_text(const PluginManifest& manifest) {
  switch (manifest.tier) {
    case PluginManifest::Tier::kStable:
      return "stable (LibTorch " + manifest.torch_min + " or newer)";
    case PluginManifest::Tier::kPinned:
      return "pinned to LibTorch " + manifest.torch_version + " (build " + manifest.torch_build_id.substr(0, 8) + ")";
    case PluginManifest::Tier::kNone:
      break;
  }
  return "none (no LibTorch)";
}

PluginIndex scan_plugins(const std::vector<std::string>& plugin_paths) {
  std::vector<std::pair<std::filesystem::path, std::string>> folders;
  for (const std::string& path : plugin_paths) folders.emplace_back(path, "--plugin-path");
  return PluginIndex::scan(folders);
}

std::string component_name(const ComponentManifest& component) {
  const std::string device = component.runs_on("cpu") ? "" : " (" + component.device + ")";
  return component.kind + " " + component.type + device;
}

std::string plugin_text(const IndexedPlugin& plugin) {
  const PluginManifest& manifest = plugin.manifest;
  std::vector<std::vector<std::string>> rows = {
      {manifest.name + " " + manifest.version},
      {"  file", plugin.file.string()},
      {"  ABI", std::to_string(manifest.abi_major) + "." + std::to_string(manifest.abi_minor)},
      {"  tier", tier_text(manifest)}};
  rows.push_back({"  loads", joined(needed_libraries(plugin.file))});
  if (!manifest.vendor.empty()) rows.push_back({"  vendor", manifest.vendor});
  if (!manifest.license.empty()) rows.push_back({"  license", manifest.license});
  if (!manifest.url.empty()) rows.push_back({"  url", manifest.url});
  const std::string title = rows.front().front() + "\n";
  rows.erase(rows.begin());
  std::string text = title + table_text(rows);
  const Json json = manifest.to_json();
  for (std::size_t i = 0; i < manifest.components.size(); ++i) {
    text += component_text(manifest.components[i], json.at("components").as_array()[i]);
  }
  return text;
}

}  // namespace capstan::cli
