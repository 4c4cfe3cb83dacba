#include "core/registry/manifest.hpp"
#include "core/registry/parameter_role.hpp"
#include "core/schema/param_type.hpp"

namespace capstan {
namespace {

Json strings(const std::vector<std::string>& values) {
  Json list = Json::array();
  for (const auto& value : values) list.push_back(value);
  return list;
}

std::string type_text(const KeySpec& spec, KeySpec::Type type) {
  return param_type_text({.type = type, .element = spec.element, .length = spec.length});
}

Json type_json(const KeySpec& spec) {
  if (spec.also.empty()) return type_text(spec, spec.type);
  Json list = Json::array();
  list.push_back(type_text(spec, spec.type));
  for (const auto type : spec.also) list.push_back(type_text(spec, type));
  return list;
}

Json param_json(const KeySpec& spec) {
  Json param = Json::object();
  param["type"] = type_json(spec);
  if (spec.nullable) param["nullable"] = true;
  if (spec.required) param["required"] = true;
  if (spec.fallback) param["default"] = *spec.fallback;
  if (spec.minimum) param[spec.exclusive_minimum ? "exclusive_min" : "min"] = *spec.minimum;
  if (spec.maximum) param[spec.exclusive_maximum ? "exclusive_max" : "max"] = *spec.maximum;
  if (!spec.choices.empty()) param["choices"] = Json(Json::Array(spec.choices));
  if (spec.per_group) param["per_group"] = true;
  if (!spec.aliases.empty()) param["aliases"] = strings(spec.aliases);
  if (!spec.summary.empty()) param["summary"] = spec.summary;
  return param;
}

Json rule_json(const ParamRule& rule) {
  Json json = Json::object();
  json["check"] = rule.check;
  json["message"] = rule.message;
  if (rule.only_warns) json["level"] = "warning";
  return json;
}

Json state_json(const StateSpec& state) {
  static constexpr const char* kExtents[] = {"shard", "full", "model"};
  static constexpr const char* kLikes[] = {"param", "scalar", "share", "block", "row", "column"};
  Json json = Json::object();
  json["name"] = state.name;
  json["like"] = kLikes[static_cast<int>(state.like)];
  if (state.like == StateSpec::Like::kBlock) json["block"] = state.block;
  json["dtype"] = state.dtype;
  if (!state.dtype_from.empty()) json["dtype_from"] = state.dtype_from;
  if (!state.when.empty()) json["when"] = state.when;
  if (!state.when_dims.empty()) json["when_dims"] = Json(Json::Array(state.when_dims.begin(), state.when_dims.end()));
  if (!state.when_roles.empty()) {
    json["when_roles"] = Json::array();
    for (const capstan_param_role role : state.when_roles) json["when_roles"].push_back(parameter_role_name(role));
  }
  if (!state.when_names.empty()) json["when_names"] = state.when_names;
  if (state.when_min_numel > 0) json["when_min_numel"] = state.when_min_numel;
  if (state.when_max_numel < INT64_MAX) json["when_max_numel"] = state.when_max_numel;
  json["init"] = state.init_param ? Json("param") : Json(state.init);
  json["extent"] = kExtents[static_cast<int>(state.extent)];
  json["on_reshard"] = state.reset_on_reshard ? "reset" : "reshard";
  if (state.per_rank) json["per_rank"] = true;
  if (state.scratch) json["scratch"] = true;
  return json;
}

Json component_json(const ComponentManifest& component) {
  Json json = Json::object();
  json["kind"] = component.kind;
  json["type"] = component.type;
  json["aliases"] = strings(component.aliases);
  json["summary"] = component.summary;
  json["device"] = component.device;
  if (!component.section.empty()) json["section"] = component.section;
  if (!component.python_package.empty()) json["python_package"] = component.python_package;
  json["params"] = Json::object();
  for (const KeySpec& spec : component.params) json["params"][spec.name] = param_json(spec);
  for (const ParamRule& rule : component.rules) {
    if (!json.find("rules")) json["rules"] = Json::array();
    json["rules"].push_back(rule_json(rule));
  }
  if (component.kind == "optimizer") {
    json["state"] = Json::array();
    for (const StateSpec& state : component.state) json["state"].push_back(state_json(state));
    json["measures"] = component.measures;
    if (component.measures_model > 0) json["measures_model"] = component.measures_model;
    json["traits"] = strings(component.traits);
  }
  if (component.kind == "observer") json["attach"] = strings(component.attach);
  if (component.attaches("layers")) json["layer_order"] = component.layer_order;
  if (component.kind == "compression") json["order"] = component.order;
  if (!component.model_types.empty()) json["model_types"] = strings(component.model_types);
  return json;
}

Json torch_json(const PluginManifest& manifest) {
  static constexpr const char* kTiers[] = {"none", "stable", "pinned"};
  Json torch = Json::object();
  torch["tier"] = kTiers[static_cast<int>(manifest.tier)];
  if (manifest.tier == PluginManifest::Tier::kStable) torch["min"] = manifest.torch_min;
  if (manifest.tier == PluginManifest::Tier::kPinned) {
    torch["version"] = manifest.torch_version;
    torch["build_id"] = manifest.torch_build_id;
    if (!manifest.cuda.empty()) torch["cuda"] = manifest.cuda;
  }
  return torch;
}

}  // namespace

Json PluginManifest::to_json() const {
  Json json = Json::object();
  json["schema"] = 1;
  json["name"] = name;
  json["version"] = version;
  json["vendor"] = vendor;
  json["license"] = license;
  json["url"] = url;
  json["abi"]["capstan"] = std::to_string(abi_major) + "." + std::to_string(abi_minor);
  json["abi"]["torch"] = torch_json(*this);
  json["components"] = Json::array();
  for (const auto& component : components) json["components"].push_back(component_json(component));
  return json;
}

}  // namespace capstan
