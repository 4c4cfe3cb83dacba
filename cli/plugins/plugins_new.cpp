#include <filesystem>
#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "cli/program.hpp"
#include "cli/usage_error.hpp"
#include "core/errors.hpp"
#include "core/registry/plugin_template.hpp"

namespace capstan::cli {
namespace {

/// The project looks for the SDK's CMake package, which an installed tree has and a build folder has not.
std::string how_to_build(const std::string& folder) {
  const std::string build = folder + "/build";
  std::string prefix = install_prefix().string(), text;
  if (!std::filesystem::exists(prefix + "/lib/cmake/CapstanSDK/CapstanSDKConfig.cmake")) {
    text = "Install the SDK, which this build folder lacks; into your home here:\n  cmake --install " + prefix +
           " --component sdk --prefix $HOME/.local\n";
    prefix = "$HOME/.local";
  }
  text += "Build and test it, and see it listed:\n";
  text += "  cmake -S " + folder + " -B " + build + " -G Ninja -DCMAKE_PREFIX_PATH=" + prefix + "\n";
  text += "  cmake --build " + build + "\n";
  text += "  ctest --test-dir " + build + " --output-on-failure\n";
  text += "  capstan plugins list --plugin-path " + build + "/lib/capstan/plugins\n";
  return text;
}

/// Mistakes in the name, the kind or the template are those of the command line.
std::vector<std::filesystem::path> created(const PluginsNewArguments& arguments) {
  try {
    return create_plugin_project(
        {arguments.name, arguments.kind, arguments.folder, arguments.lang == "c" ? "c" : arguments.variant});
  } catch (const ConfigError& error) {
    throw UsageError(error.what());
  }
}

}  // namespace

int plugins_new(const PluginsNewArguments& arguments) {
  const auto files = created(arguments);
  const std::string folder = arguments.folder.empty() ? arguments.name : arguments.folder;
  std::string text = "made " + folder + ":\n";
  for (const auto& file : files) text += "  " + file.string() + "\n";
  print(text + how_to_build(folder));
  return 0;
}

}  // namespace capstan::cli
