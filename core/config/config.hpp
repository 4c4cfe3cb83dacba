#pragma once

#include <optional>
#include <string>

#include "core/config/typed/config.hpp"
#include "core/registry/plugin_index.hpp"
#include "core/text/problem.hpp"

namespace capstan {

/// The text of a file, TOML when its name ends in .toml; failing that, JSON in URL-safe base64. Throws ConfigError.
ConfigText read_config_text(const std::string& path_or_base64);

/// Result of reading: `config` is set unless there are errors.
struct ConfigReading {
  std::optional<Config> config;
  Problems problems;  // sorted by place
  PluginIndex plugins;
};

/// Reads, completes and checks a configuration; every problem is reported, none thrown.
ConfigReading read_config(const ConfigText& text, const ConfigContext& context);
/// The same with plugins that are known already; capstan.plugins.path is not searched.
ConfigReading read_config(const ConfigText& text, const ConfigContext& context, const PluginIndex& plugins);

/// The same for programs: logs warnings and notices, throws ConfigError with all errors.
Config load_config(const ConfigText& text, const ConfigContext& context, PluginIndex& plugins);

/// A configuration without what depends on the number of processes. Throws ConfigError with every error of the
/// configuration, and when elasticity is not enabled.
Config read_elastic_config(const ConfigText& text, ConfigContext context);

}  // namespace capstan
