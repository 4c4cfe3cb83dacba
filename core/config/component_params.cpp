#include "core/config/component_params.hpp"

#include <string>

namespace capstan {

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

}  // namespace capstan
