#include "core/config/tools/json_schema.hpp"

#include <string>
#include <utility>

#include "core/config/language/language.hpp"
#include "core/config/language/old_names.hpp"
#include "core/config/language/validator.hpp"
#include "core/config/tools/key_schema.hpp"
#include "core/registry/plugin_kind.hpp"

namespace capstan {
namespace {

Json object(std::initializer_list<Json::Member> members) { return Json(Json::Object(members)); }

Json params_schema(const ComponentManifest& component) {
  Json properties = Json::object();
  Json::Array required;
  for (const KeySpec& spec : component.params) {
    const Json schema = key_schema(spec, true);
    properties[spec.name] = schema;
    for (const auto& alias : spec.aliases) properties[alias] = schema;
    if (spec.required && spec.aliases.empty()) required.push_back(spec.name);
  }
  Json schema = closed_object(std::move(properties));
  if (!required.empty()) schema["required"] = Json(std::move(required));
  return schema;
}

Json type_pattern(const ComponentManifest& component) {
  std::string pattern = any_case_pattern(component.type);
  for (const auto& alias : component.aliases) pattern += "|" + any_case_pattern(alias);
  return object({{"type", "string"}, {"pattern", pattern}});
}

/// {"type": .., "params": ..}, where the type decides which parameters there are.
Json component_schema(const PluginIndex& plugins, const std::string& kind, Json properties) {
  Json::Array types, spellings, branches;
  for (const auto& plugin : plugins.plugins()) {
    for (const auto& component : plugin.manifest.components) {
      if (component.kind != kind) continue;
      // A component for another device takes the same parameters as its type does on the CPU.
      if (!component.runs_on("cpu") && plugins.find(kind, component.type)) continue;
      const Json params = params_schema(component);
      const bool needs = params.find("required") != nullptr;
      Json then = object({{"properties", object({{"params", params}})}});
      if (needs) then["required"] = Json(Json::Array{"params"});
      if (!needs)
        then["properties"]["params"] = object({{"anyOf", Json(Json::Array{params, object({{"type", "null"}})})}});
      branches.push_back(
          object({{"if", object({{"properties", object({{"type", type_pattern(component)}})}})}, {"then", then}}));
      types.push_back(type_pattern(component));
      spellings.emplace_back(component.type);
    }
  }
  if (kind == "scheduler") types.push_back(object({{"const", "1Cycle"}}));
  if (kind == "model") types.push_back(object({{"type", "string"}, {"pattern", "^hf:|\\.gguf$"}}));
  // Editors complete from an enum; the patterns are for other letter cases.
  if (!spellings.empty()) types.insert(types.begin(), object({{"enum", Json(std::move(spellings))}}));
  properties["type"] = types.empty() ? object({{"not", Json::object()}}) : object({{"anyOf", Json(std::move(types))}});
  properties["params"] = Json::object();
  Json schema = closed_object(std::move(properties));
  schema["required"] = Json(Json::Array{"type"});
  if (!branches.empty()) schema["allOf"] = Json(std::move(branches));
  return schema;
}

/// The kind of the component that an object of the configuration names; empty when it names none.
std::string kind_of(const std::string& path) {
  for (const PluginKind& kind : plugin_kinds()) {
    if (!path.empty() && kind.path == path) return std::string(kind.name);
  }
  return "";
}

class Writer {
 public:
  explicit Writer(const PluginIndex& plugins) : plugins_(plugins) {}

  Json section(const SchemaNode& node) const {
    Json properties = Json::object();
    Json::Array required;
    for (const auto& member : node.members) {
      properties[member->spec.name] = key(*member);
      if (member->spec.required) required.push_back(member->spec.name);
    }
    if (const std::string kind = kind_of(node.path); !kind.empty())
      return component_schema(plugins_, kind, std::move(properties));
    old_spellings(node, properties);
    Json schema = closed_object(std::move(properties));
    if (node.any_member) schema["additionalProperties"] = key(*node.any_member);
    if (!required.empty()) schema["required"] = Json(std::move(required));
    return schema;
  }

 private:
  Json key(const SchemaNode& node) const {
    Json schema;
    if (node.is_section()) {
      schema = object({{"anyOf", Json(alternatives(node))}});
    } else {
      KeySpec spec = node.spec;
      const bool ordinary = node.has(kOrAuto) && spec.choices.empty();
      schema = key_schema(spec, ordinary || auto_means_default(node.path));
      if (node.element)
        schema = object({{"anyOf", Json(Json::Array{object({{"type", "array"}, {"items", element(*node.element)}}),
                                                    object({{"type", "null"}})})}});
    }
    if (!node.spec.summary.empty()) schema["description"] = node.spec.summary;
    return schema;
  }

  Json element(const SchemaNode& node) const { return node.is_section() ? section(node) : key(node); }

  /// The forms of a section: an object, null, and what older and shorter spellings allow.
  Json::Array alternatives(const SchemaNode& node) const {
    Json::Array forms{section(node), object({{"type", "null"}})};
    if (node.path == "zero_optimization") forms.push_back(object({{"type", "boolean"}, {"deprecated", true}}));
    if (node.path == "zero_optimization.offload_param" || node.path == "zero_optimization.offload_optimizer")
      forms.push_back(object({{"const", false}}));
    if (node.path == "capstan.model") forms.push_back(object({{"type", "string"}}));
    return forms;
  }

  void old_spellings(const SchemaNode& node, Json& properties) const {
    for (const OldSpelling& old : old_spellings_in(node.path)) {
      const SchemaNode* today = find_key(old.new_path);
      // A few old names are keys of the language still, with a type of their own: allgather_size.
      const Json* own = properties.find(old.name);
      Json schema = own ? *own : today && old.same_value ? key(*today) : Json::object();
      schema["deprecated"] = true;
      properties[old.name] = std::move(schema);
    }
  }

  const PluginIndex& plugins_;
};

}  // namespace

Json json_schema(const PluginIndex& plugins) {
  Json schema = Writer(plugins).section(language());
  for (const auto& plugin : plugins.plugins()) {
    for (const auto& component : plugin.manifest.components) {
      if (component.section.empty() || find_key(component.section)) continue;
      Json section = params_schema(component);
      KeySpec enabled;
      enabled.type = KeySpec::Type::kBoolean;
      if (!section["properties"].find("enabled")) section["properties"]["enabled"] = key_schema(enabled, false);
      schema["properties"][component.section] =
          object({{"anyOf", Json(Json::Array{section, object({{"type", "null"}})})}});
    }
  }
  Json out = object({{"$schema", "https://json-schema.org/draft/2020-12/schema"}, {"title", "Capstan configuration"}});
  for (auto& [name, value] : schema.as_object()) out[name] = std::move(value);
  return out;
}

}  // namespace capstan
