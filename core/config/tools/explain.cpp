#include "core/config/tools/explain.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "core/config/language/foreign_keys.hpp"
#include "core/config/language/language.hpp"
#include "core/config/resolve/acting_component.hpp"
#include "core/config/rules/compatibility.hpp"
#include "core/errors.hpp"
#include "core/schema/value.hpp"
#include "core/text/nearest.hpp"
#include "core/text/places.hpp"

namespace capstan {
namespace {

/// The earliest generation of pages that has the key.
std::string since(std::string_view pages) {
  if (pages.find("ours") != std::string_view::npos) return "Capstan alone";
  if (pages.find("000") != std::string_view::npos) return "DeepSpeed's first releases, 2020";
  if (pages.find("001") != std::string_view::npos) return "DeepSpeed's documentation of 2022";
  if (pages.find("002") != std::string_view::npos || pages.find("00") != std::string_view::npos)
    return "DeepSpeed's documentation of 2024";
  if (pages.find("page") != std::string_view::npos) return "DeepSpeed's documentation of 2026";
  return "DeepSpeed's code only";
}

std::string allowed_text(const KeySpec& spec) {
  if (spec.choices.empty()) return range_text(spec);
  std::string text;
  for (const Json& choice : spec.choices) text += (text.empty() ? "" : ", ") + shown(choice);
  return text + (spec.any_case ? ", in any letter case" : "");
}

std::string default_text(const KeySpec& spec) {
  if (spec.fallback) return spec.fallback->dump();
  return spec.required ? "none: it must be given" : "absent";
}

std::string row(const char* label, const std::string& text) {
  return text.empty() ? ""
                      : "  " + std::string(label) + std::string(9 - std::string_view(label).size(), ' ') + text + "\n";
}

std::string type_and_range(const KeySpec& spec, bool or_auto) {
  const std::string allowed = allowed_text(spec);
  return type_text(spec) + (or_auto && spec.choices.empty() ? " | \"auto\"" : "") +
         (allowed.empty() ? "" : ": " + allowed);
}

/// True when something acts on one of the keys below the node.
bool some_are_read(const SchemaNode& node, const PluginIndex& plugins) {
  return std::any_of(node.members.begin(), node.members.end(), [&](const auto& member) {
    return !acting_component(*member, member->path, plugins).empty() || some_are_read(*member, plugins);
  });
}

std::string acting_on(const SchemaNode& node, const std::string& path, const PluginIndex& plugins) {
  if (node.has(kNoEffect)) return std::string("nothing: ") + node.key->reader;
  const std::string reader = acting_component(node, path, plugins);
  if (!reader.empty()) return reader;
  return some_are_read(node, plugins) ? "what acts on its keys" : "nothing in this installation; its value is checked";
}

std::string explain_node(const SchemaNode& node, const std::string& path, const PluginIndex& plugins) {
  std::string text =
      path + "\n  " + (node.spec.summary.empty() ? "Holds the keys below it." : node.spec.summary) + "\n";
  text += row("type", node.is_section() ? "object" : type_and_range(node.spec, node.has(kOrAuto)));
  if (!node.is_section()) text += row("default", default_text(node.spec));
  if (node.key) text += row("since", since(node.key->pages));
  text += row("read by", acting_on(node, path, plugins));
  std::string members;
  for (const auto& member : node.members) members += (members.empty() ? "" : ", ") + member->spec.name;
  if (node.any_member) members += (members.empty() ? "" : ", ") + node.any_member->spec.name;
  return text + row("keys", members);
}

/// "optimizer.params.lr" -> kind optimizer, parameter lr.
std::string explain_parameter(std::string_view path, const PluginIndex& plugins) {
  std::string text;
  for (const std::string kind : {"optimizer", "scheduler"}) {
    const std::string prefix = kind + ".params.";
    if (!path.starts_with(prefix)) continue;
    for (const auto& plugin : plugins.plugins()) {
      for (const auto& component : plugin.manifest.components) {
        if (component.kind != kind) continue;
        if (!component.runs_on("cpu") && plugins.find(kind, component.type)) continue;  // it takes the same
        for (const KeySpec& spec : component.params) {
          if (spec.name != path.substr(prefix.size())) continue;
          text += "  " + component.type + ": " + type_and_range(spec, false) + "; default " + default_text(spec) +
                  (spec.summary.empty() ? "" : ". " + spec.summary) + "\n";
        }
      }
    }
  }
  return text.empty() ? "" : std::string(path) + "\n" + text;
}

/// The keys of a section that only a plugin knows. Unless the plugin has an "enabled" of its own, that of every
/// section.
std::vector<KeySpec> section_keys(const ComponentManifest& component) {
  std::vector<KeySpec> keys = component.params;
  if (std::none_of(keys.begin(), keys.end(), [](const KeySpec& spec) { return spec.name == "enabled"; })) {
    KeySpec enabled;
    enabled.name = "enabled";
    enabled.type = KeySpec::Type::kBoolean;
    enabled.fallback = Json(false);
    enabled.summary = "Switches the section on.";
    keys.insert(keys.begin(), std::move(enabled));
  }
  return keys;
}

/// Calls `visit` with each component that has a section which the language does not, the first of the search path for
/// each.
template <class Visit>
void each_foreign_section(const PluginIndex& plugins, Visit visit) {
  std::set<std::string> seen;
  for (const auto& plugin : plugins.plugins()) {
    for (const auto& component : plugin.manifest.components) {
      if (component.section.empty() || find_key(component.section)) continue;
      if (seen.insert(component.section).second) visit(plugin, component);
    }
  }
}

/// A section that a plugin owns, or one of its keys.
std::string explain_section(const std::string& path, const PluginIndex& plugins) {
  std::string text;
  each_foreign_section(plugins, [&](const IndexedPlugin& plugin, const ComponentManifest& component) {
    const std::string reader =
        component.kind + " '" + component.type + "' (" + plugin.manifest.name + " " + plugin.manifest.version + ")";
    std::string names;
    for (const KeySpec& spec : section_keys(component)) {
      names += (names.empty() ? "" : ", ") + spec.name;
      if (path != join_path(component.section, spec.name)) continue;
      text = path + "\n  " + (spec.summary.empty() ? "Its plugin says no more of it." : spec.summary) + "\n" +
             row("type", type_and_range(spec, false)) + row("default", default_text(spec)) + row("read by", reader);
    }
    if (path != component.section) return;
    text = path + "\n  " + (component.summary.empty() ? "Holds the keys below it." : component.summary) + "\n" +
           row("type", "object") + row("read by", reader) + row("keys", names);
  });
  return text;
}

void collect_paths(const SchemaNode& node, std::vector<std::string>& paths) {
  for (const auto& member : node.members) {
    paths.push_back(member->path);
    collect_paths(*member, paths);
  }
}

std::string with_placeholder(std::string text) {
  if (const auto at = text.find("{}"); at != std::string::npos) text.replace(at, 2, "N");
  return text;
}

/// Why a key does nothing here, for the reference page.
std::string without_effect(const SchemaNode& node) {
  return node.has(kNoEffect) ? std::string(" Without effect here: ") + node.key->reader + "." : "";
}

std::string escaped(std::string text) {
  for (auto at = text.find('|'); at != std::string::npos; at = text.find('|', at + 2)) text.insert(at, "\\");
  return text;
}

}  // namespace

std::string explain_key(std::string_view path, const PluginIndex& plugins) {
  if (const SchemaNode* node = find_key(path)) return explain_node(*node, std::string(path), plugins);
  if (const std::string parameter = explain_parameter(path, plugins); !parameter.empty()) return parameter;
  if (const std::string section = explain_section(std::string(path), plugins); !section.empty()) return section;
  std::vector<std::string> paths;
  collect_paths(language(), paths);
  each_foreign_section(plugins, [&](const IndexedPlugin&, const ComponentManifest& component) {
    paths.push_back(component.section);
    for (const KeySpec& spec : section_keys(component)) paths.push_back(join_path(component.section, spec.name));
  });
  std::string near;
  if (const std::string_view here = foreign_key_here(path); !here.empty()) {
    near = " Did you mean '" + std::string(here) + "'?";
  }
  const std::string last(path.substr(path.rfind('.') + 1));
  for (const std::string& candidate : paths) {
    if (near.empty() && name_distance(candidate.substr(candidate.rfind('.') + 1), last) == 0)
      near = " Did you mean '" + candidate + "'?";
  }
  throw ConfigError("'" + std::string(path) + "': there is no such key." +
                    (near.empty() ? suggestion(path, paths) : near));
}

std::string reference_page() {
  std::string page =
      "# Configuration reference\n\n"
      "Every key of the language: its type, what it takes when it is left out, the values it allows, since when it is\n"
      "documented, and what it does. The validator, `capstan validate --explain`, the JSON Schema and this page come "
      "from\n"
      "one source, the tables in `core/config/language/tables`; `capstan schema --reference` prints this page.\n\n"
      "Parameters of optimizers, schedules, models and monitors are their plugins': `capstan plugins list` names the\n"
      "plugins, `capstan validate --explain optimizer.params.lr` explains a parameter.\n";
  for (const KeyTable& table : key_tables()) {
    page += std::string("\n## ") + table.title +
            "\n\n| key | type | default | allowed | since | meaning |\n| --- | --- | --- | --- | --- | --- |\n";
    for (const Key& key : table.keys) {
      std::string path = key.path;
      const SchemaNode* node = &language();
      for (std::string_view rest = path; !rest.empty();) {
        const auto dot = rest.find('.');
        std::string_view part = rest.substr(0, dot);
        const bool element = part.ends_with("[]");
        node = node->member(element ? part.substr(0, part.size() - 2) : part);
        if (element) node = node->element.get();
        rest = dot == std::string_view::npos ? std::string_view() : rest.substr(dot + 1);
      }
      const KeySpec& spec = node->spec;
      const bool section = node->is_section();
      page += "| `" + path + "` | " +
              escaped(section ? "object"
                              : type_text(spec) + (node->has(kOrAuto) && spec.choices.empty() ? " | \"auto\"" : "")) +
              " | " + escaped(section ? "" : default_text(spec)) + " | " + escaped(section ? "" : allowed_text(spec)) +
              " | " + since(key.pages) + " | " + escaped(spec.summary + without_effect(*node)) + " |\n";
    }
  }
  page +=
      "\n## What does not go together\n\nThe validator refuses these pairs; the sentence is what it says of the "
      "first.\n\n| setting | with | why |\n| --- | --- | --- |\n";
  for (const Incompatible& row : compatibility_table()) {
    page += "| " + row.setting.sentence() + " | " + row.with.sentence() + " | " +
            escaped(with_placeholder(row.message)) + " |\n";
  }
  return page;
}

}  // namespace capstan
