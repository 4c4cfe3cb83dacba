#pragma once

#include <string>

#include "core/attention/block_layout.hpp"
#include "core/config/component_params.hpp"
#include "core/registry/host.hpp"
#include "core/registry/plugin_index.hpp"
#include "core/registry/registry.hpp"

namespace capstan::testing {

/// A bundled layout or kernel, with parameters as a configuration gives them. Throws ConfigError as the engine would.
inline Component attention_component(const std::string& type, const Json& params = Json::object()) {
  static const PluginIndex plugins = PluginIndex::scan({});
  static const capstan_host host = make_host();
  static Registry registry(plugins);
  const ComponentRef found = plugins.find("attention", type);
  if (!found) throw PluginError("no attention '" + type + "'");
  return registry.create("here", "attention", type, checked_component_params(params, "here", *found.component), &host);
}

inline BlockLayout bundled_layout(const std::string& type, const Json& params, std::int64_t heads, std::int64_t tokens,
                                  bool causal = false, std::uint64_t seed = 1) {
  BlockLayout layout = make_layout(attention_component(type, params), "here", heads, tokens, causal, seed);
  layout.drop_later();
  return layout;
}

}  // namespace capstan::testing
