#include "cli/config_arguments.hpp"

#include "cli/program.hpp"

namespace capstan::cli {

std::string default_config_file() { return (install_prefix() / "share/capstan/default.json").string(); }

ConfigText config_text(const ConfigArguments& arguments) {
  return read_config_text(arguments.file.empty() ? default_config_file() : arguments.file);
}

ConfigContext config_context(const ConfigArguments& arguments) {
  ConfigContext context;
  context.overrides = arguments.overrides;
  context.plugin_paths = arguments.plugin_paths;
  context.lenient = arguments.lenient;
  context.says_autos = !arguments.file.empty();
  context.strict = arguments.strict;
  return context;
}

}  // namespace capstan::cli
