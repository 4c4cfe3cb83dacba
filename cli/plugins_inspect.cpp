#include "cli/commands.hpp"
#include "cli/plugin_text.hpp"
#include "cli/program.hpp"

namespace capstan::cli {
int plugins_inspect(const PluginsInspectArguments& arguments) {
  const IndexedPlugin plugin = read_plugin(arguments.file);
  print(arguments.json ? plugin.manifest.to_json().dump(2) + "\n" : plugin_text(plugin));
  return 0;
}

}  // namespace capstan::cli
