#pragma once

#include <string>
#include <vector>

#include "cli/arguments.hpp"
#include "core/config/config.hpp"
#include "core/run/loaded_config.hpp"

namespace capstan::cli {

/// The file that is used without --config: <prefix>/share/capstan/default.json.
std::string default_config_file();

/// The text of --config, or of the default configuration.
ConfigText config_text(const ConfigArguments& arguments);

ConfigContext config_context(const ConfigArguments& arguments);

/// Both, for the functions of core/run. A training needs all that 'capstan train' needs.
RunSource source_of(const ConfigArguments& arguments);

/// How a configuration is read, as words for another process: --plugin-path, --lenient and --strict.
std::vector<std::string> reading_options(const ConfigArguments& arguments);

}  // namespace capstan::cli
