// The components that sections of the configuration switch on.

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "core/config/language/language.hpp"
#include "core/config/language/params.hpp"
#include "core/config/resolve/acting_component.hpp"
#include "core/config/resolve/components.hpp"
#include "core/config/resolve/switched_sections.hpp"
#include "core/schema/value.hpp"
#include "core/text/places.hpp"

namespace capstan {

/// The component that carries out a section which only plugins know: the first of the search path.
const ComponentManifest* ComponentChooser::owner(std::string_view section) const {
  for (const auto& plugin : plugins_.plugins()) {
    for (const auto& component : plugin.manifest.components) {
      if (component.section == section) return &component;
    }
  }
  return nullptr;
}

/// True when a list of the section capstan names the component.
bool ComponentChooser::is_listed(const ComponentManifest& component) const {
  const Json* entries = values_.find("capstan." + component.kind + "s");
  if (!entries || !entries->is_array()) return false;
  return std::any_of(entries->as_array().begin(), entries->as_array().end(), [&](const Json& entry) {
    const Json* type = entry.find("type");
    return type && type->is_string() && plugins_.find(component.kind, type->as_string()).component == &component;
  });
}

/// A section of the language, which is checked already.
std::optional<ComponentChoice> ComponentChooser::known_section(const IndexedPlugin& plugin,
                                                               const ComponentManifest& component, bool switched) {
  if (!has_switch(component) && (values_.given(component.section) || is_listed(component))) {
    const bool has_list =
        component.kind == "monitor" || component.kind == "observer" || component.kind == "compression";
    problems_.warning(component.section,
                      plugin.file.string() + ": its " + component.kind + " '" + component.type +
                          "' is never chosen by this section, which switches on no " + component.kind +
                          ", and gets none of its keys." +
                          (has_list ? " List it in capstan." + component.kind + "s, with parameters of its own." : ""));
  }
  if (!switched) return std::nullopt;
  Json given = Json::object();
  if (const Json* section = values_.find(component.section); section && section->is_object()) {
    for (const auto& [key, value] : section->as_object()) {
      if (!has_param(component, key)) continue;
      given[key] = value;
      values_.consume(join_path(component.section, key));
    }
  }
  for (const HandedOn& key : handed_on()) {
    const Json* value = component.section == key.section ? values_.find(key.path) : nullptr;
    if (value == nullptr) continue;
    if (value->is_object()) {
      for (const auto& [name, member] : value->as_object()) {
        if (!has_param(component, name)) continue;
        given[name] = member;
        values_.consume(join_path(key.path, name));
      }
    } else if (has_param(component, key.param) && given.find(key.param) == nullptr && values_.given(key.path)) {
      given[key.param] = *value;
    }
  }
  return section_choice(component, given);
}

/// A section that only its plugin knows.
std::optional<ComponentChoice> ComponentChooser::foreign_section(const ComponentManifest& component) {
  const Json* section = document_.find(component.section);
  if (!section || section->is_null()) return std::nullopt;
  if (!section->is_object()) {
    problems_.error(component.section, "the section must be an object, got " + shown(*section) + ".");
    return std::nullopt;
  }
  if (has_param(component, "enabled")) return section_choice(component, *section);
  Json given = *section;
  given.erase("enabled");
  ComponentChoice choice = section_choice(component, given);
  KeySpec boolean;
  boolean.type = KeySpec::Type::kBoolean;
  const Json* enabled = section->find("enabled");
  const Converted on = enabled && !enabled->is_null() ? convert(*enabled, boolean) : Converted{Json(false), "", ""};
  if (!on.value) problems_.error(component.section + ".enabled", on.fault);
  if (on.value && on.value->as_bool()) return choice;
  if (on.value) problems_.notice(component.section, "is not used: \"enabled\": true switches it on.");
  return std::nullopt;
}

ComponentChoice ComponentChooser::section_choice(const ComponentManifest& component, const Json& given) {
  ComponentChoice choice{component.kind, component.type, Json::object(), component.section};
  choice.params = checked_params(given, component.section, component);
  return choice;
}

/// Reports a section that is switched on and that nothing installed carries out.
void ComponentChooser::missing_section(const SwitchedSection& wanted) {
  const SchemaNode* node = find_key(wanted.section);
  const bool key = node && !node->is_section();
  const std::string section = (key ? "the key '" : "the section '") + std::string(wanted.section) + "'";
  if (wanted.shipped) {
    problems_.error(wanted.switch_path, "no installed " + std::string(wanted.kind) + " carries out " + section +
                                            "; one comes with Capstan." + plugins_.searched_text());
  } else {
    problems_.error(wanted.switch_path,
                    section +
                        " is not in this release, and no installed plugin acts on it. Remove it, or install "
                        "a plugin whose manifest says section = \"" +
                        wanted.section + "\"." + plugins_.refused_text());
  }
}

std::set<const ComponentManifest*> ComponentChooser::switched_components() {
  std::set<const ComponentManifest*> chosen;
  std::set<std::string_view> reported;  // sections
  for (const SwitchedSection& wanted : switched_sections()) {
    if (!is_on(values_, wanted)) continue;
    if (const ComponentManifest* component = carrier(plugins_, wanted)) {
      chosen.insert(component);
    } else if (!wanted.optional && reported.insert(wanted.section).second) {
      missing_section(wanted);
    }
  }
  return chosen;
}

void ComponentChooser::sections(const BySection& chosen) {
  const std::set<const ComponentManifest*> switched = switched_components();
  for (const auto& plugin : plugins_.plugins()) {
    for (const auto& component : plugin.manifest.components) {
      if (component.section.empty()) continue;
      std::optional<ComponentChoice> choice;
      if (find_key(component.section)) {
        choice = known_section(plugin, component, switched.contains(&component));
      } else if (component.section.find('.') != std::string::npos) {
        problems_.warning(component.section, plugin.file.string() + ": its " + component.kind + " '" + component.type +
                                                 "' is never chosen: there is no such section. A section of a "
                                                 "plugin's own stands at the top of a configuration.");
      } else if (owner(component.section) == &component) {
        choice = foreign_section(component);
      }
      if (!choice) continue;
      if (choice->kind == "monitor") {
        chosen.monitors.push_back(std::move(*choice));
      } else if (choice->kind == "observer") {
        chosen.observers.push_back(std::move(*choice));
      } else if (choice->kind == "compression") {
        chosen.compressions.push_back(std::move(*choice));
      } else if (choice->kind == "sampler") {
        if (chosen.sampler) {
          problems_.error(chosen.sampler->where,
                          "gives samples an order, and so does " + component.section + ". Take one of the two away.");
        } else {
          chosen.sampler = std::move(choice);
        }
      } else {
        problems_.error(component.section, plugin.file.string() + ": its " + component.kind + " '" + component.type +
                                               "' cannot be chosen by a section of its own, only monitors, "
                                               "observers, compressions and samplers can. Ask the plugin's author.");
      }
    }
  }
  list("capstan.monitors", "monitor", chosen.monitors);
  list("capstan.observers", "observer", chosen.observers);
  list("capstan.compressions", "compression", chosen.compressions);
}

}  // namespace capstan
