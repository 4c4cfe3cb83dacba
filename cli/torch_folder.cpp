#include "cli/torch_folder.hpp"

#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "cli/program.hpp"
#include "cli/python_folder.hpp"
#include "cli/version.hpp"
#include "core/errors.hpp"
#include "core/registry/build_id.hpp"

namespace capstan::cli {
namespace {

namespace fs = std::filesystem;

/// What a folder holds in place of the LibTorch that is wanted; empty: that one.
std::string flaw(const fs::path& lib_dir) {
  const fs::path library = lib_dir / "libc10.so";
  std::error_code error;
  if (!fs::exists(library, error)) return "no LibTorch there";
  const std::string found = build_id_of(library.string());
  if (found == built_with().torch_build_id) return "";
  return found.empty() ? "libc10.so cannot be read" : "another LibTorch, build " + found;
}

/// Looks into folders, in turn, and remembers what was wrong with each.
class Search {
 public:
  /// Whether the folder is the one; `name` is what the user would call it.
  bool found_in(const fs::path& lib_dir, const std::string& name) {
    const std::string found = flaw(lib_dir);
    if (!found.empty()) tried_ += "\n  " + name + ": " + lib_dir.string() + ": " + found;
    return found.empty();
  }
  [[noreturn]] void fail() const {
    const BuiltWith built = built_with();
    throw RuntimeFault(
        std::string("LibTorch ") + built.torch_version + " (build " + built.torch_build_id +
        ") was not found:" + tried_ + "\nInstall the package torch " + built.torch_version +
        " from PyPI with pip, and name its folder 'torch' in the environment variable CAPSTAN_TORCH_DIR.");
  }

 private:
  std::string tried_;
};

}  // namespace

std::string torch_lib_dir() {
  Search search;
  if (const char* const named = std::getenv("CAPSTAN_TORCH_DIR"); named && *named) {
    const fs::path folder = fs::path(named) / "lib";
    if (search.found_in(folder, "CAPSTAN_TORCH_DIR")) return folder.string();
    search.fail();
  }
  const fs::path built = built_with().torch_lib_dir, beside = install_prefix().parent_path() / "torch/lib";
  if (search.found_in(built, "when Capstan was built")) return built.string();
  if (search.found_in(beside, "beside Capstan")) return beside.string();
  const std::string python = python_package_folder("torch");
  if (!python.empty() && search.found_in(fs::path(python) / "lib", "of python3")) return python + "/lib";
  search.fail();
}

void export_torch_lib_dir() {
  const std::string folder = torch_lib_dir();
  const char* const before = std::getenv("LD_LIBRARY_PATH");
  const std::string rest = before && *before ? ":" + std::string(before) : "";
  if (rest == ":" + folder || rest.starts_with(":" + folder + ":")) return;
  setenv("LD_LIBRARY_PATH", (folder + rest).c_str(), 1);
}

}  // namespace capstan::cli
