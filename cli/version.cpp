#include "cli/version.hpp"

#include "capstan/plugin.h"
#include "cli/torch_folder.hpp"
#include "core/errors.hpp"
#include "core/version.hpp"

namespace capstan::cli {

BuiltWith built_with() { return {CAPSTAN_TORCH_VERSION, CAPSTAN_TORCH_LIB_DIR, CAPSTAN_TORCH_BUILD_ID}; }

std::string version_text() {
  const BuiltWith built = built_with();
  std::string text = std::string("Capstan ") + version() + "\nplugin ABI " + std::to_string(CAPSTAN_ABI_MAJOR) + "." +
                     std::to_string(CAPSTAN_ABI_MINOR) + "\n";
  try {
    const std::string folder = torch_lib_dir();
    return text + "LibTorch " + built.torch_version + " (build " + built.torch_build_id + ") in " + folder;
  } catch (const RuntimeFault& missing) {
    return text + missing.what();
  }
}

}  // namespace capstan::cli
