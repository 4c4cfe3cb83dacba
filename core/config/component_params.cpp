#include "core/config/component_params.hpp"

#include <string>
#include <vector>

#include "core/config/language/params.hpp"
#include "core/config/language/validator.hpp"
#include "core/errors.hpp"
#include "core/text/problem.hpp"

namespace capstan {
namespace {

std::string key_list(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "'" : ", '") + name + "'";
  return names.empty() ? "no parameters" : text;
}

}  // namespace

Json component_params(const ComponentChoice& choice, const Config& config, const PluginIndex& plugins) {
  Json params = choice.params;
  const ComponentRef found = plugins.find(choice.kind, choice.type, choice.device);
  if (!found || config.corrections.empty()) return params;
  for (const KeySpec& spec : found.component->params) {
    if (spec.name != "corrections") continue;
    Json names = Json::array();
    for (const std::string& name : config.corrections) names.push_back(name);
    params["corrections"] = names;
  }
  return params;
}

Json checked_component_params(const Json& given, const std::string& where, const ComponentManifest& component) {
  const ParamsPlace place{where, component.type};
  Problems problems;
  std::vector<UnknownKey> unknown;
  std::vector<ResolvedAuto> autos;
  Json params = validate_params(given, place, component.params, problems, unknown, autos);
  for (const UnknownKey& key : unknown) {
    problems.error(key.path, "is unknown. " + component.type + " has " + key_list(key.parameters) + ".");
  }
  check_param_rules(params, place, component.rules, problems);
  std::string text;
  for (const Problem& problem : problems.all()) {
    if (problem.severity == Problem::Severity::kError)
      text += (text.empty() ? "" : "\n") + problem.path + ": " + problem.message;
  }
  if (!text.empty()) throw ConfigError(text);
  return params;
}

}  // namespace capstan
