#include "cli/data/arrow_folder.hpp"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "cli/program.hpp"
#include "cli/python_folder.hpp"
#include "core/errors.hpp"

namespace capstan::cli {
namespace {

namespace fs = std::filesystem;

bool has_arrow(const fs::path& folder) {
  std::error_code error;  // a folder that may not be searched does not have them
  return fs::exists(folder / ("libarrow.so." CAPSTAN_ARROW_SO_VERSION), error) &&
         fs::exists(folder / ("libparquet.so." CAPSTAN_ARROW_SO_VERSION), error);
}

}  // namespace

std::string arrow_program() {
  const std::string program = (install_prefix() / "libexec/capstan-arrow").string();
  if (access(program.c_str(), X_OK) == 0) return program;
  throw RuntimeFault("reading it takes " + program +
                     ", and this Capstan was built without that program. Run 'scripts/setup --arrow' in Capstan's "
                     "sources and build again, or write the rows as JSON lines.");
}

std::string arrow_lib_dir() {
  const char* const named = std::getenv("CAPSTAN_ARROW_DIR");
  std::vector<std::pair<std::string, fs::path>> folders;
  if (named != nullptr && *named != '\0') {
    folders = {{"CAPSTAN_ARROW_DIR", named}};
  } else {
    folders = {{"when Capstan was built", CAPSTAN_ARROW_DIR},
               {"beside Capstan", install_prefix().parent_path() / "pyarrow"}};
  }
  std::string tried;
  const auto found = [&](const std::string& name, const fs::path& folder) {
    if (!folder.empty() && has_arrow(folder)) return true;
    tried += "\n  " + name + ": " + (folder.empty() ? "none" : folder.string() + ": no such libraries there");
    return false;
  };
  for (const auto& [name, folder] : folders) {
    if (found(name, folder)) return folder.string();
  }
  if (folders.size() > 1) {
    // Last, as it starts a process.
    if (const std::string python = python_package_folder("pyarrow"); found("of python3", python)) return python;
  }
  throw RuntimeFault(
      "reading it takes libarrow.so." CAPSTAN_ARROW_SO_VERSION " and libparquet.so." CAPSTAN_ARROW_SO_VERSION
      " of the package pyarrow " CAPSTAN_ARROW_VERSION ", which were not found:" +
      tried +
      "\nInstall pyarrow " CAPSTAN_ARROW_VERSION
      " from PyPI with pip, and name its folder 'pyarrow' in the environment variable CAPSTAN_ARROW_DIR.");
}

}  // namespace capstan::cli
