#include "cli/commands.hpp"
#include "cli/program.hpp"
#include "core/registry/plugin_template.hpp"

namespace capstan::cli {

int plugins_new(const PluginsNewArguments& arguments) {
  const auto files = create_plugin_project({arguments.name, arguments.kind, arguments.folder});
  const std::string folder = arguments.folder.empty() ? arguments.name : arguments.folder;
  std::string text = "made " + folder + ":\n";
  for (const auto& file : files) text += "  " + file.string() + "\n";
  print(text + "Build it as its README.md says; then: capstan plugins list --plugin-path " + folder +
        "/build/lib/capstan/plugins\n");
  return 0;
}

}  // namespace capstan::cli
