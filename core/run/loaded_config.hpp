#pragma once

#include <functional>
#include <memory>
#include <string>

#include "core/config/config.hpp"

namespace capstan {

class Communicator;

/// A configuration, the plugins that it may name, and the processes that train as it says.
struct LoadedConfig {
  Config config;
  PluginIndex plugins;
  std::shared_ptr<Communicator> communicator;
};

/// Where the configuration of a run comes from, and what is known beside its text. `text` is called once in a process:
/// a file that changes later does not change the run. It may throw ConfigError.
struct RunSource {
  std::function<ConfigText()> text;
  ConfigContext context;

  /// A file as read_config_text() takes it.
  static RunSource file(const std::string& path_or_base64) {
    return {[path_or_base64] { return read_config_text(path_or_base64); }, {}};
  }
};

}  // namespace capstan
