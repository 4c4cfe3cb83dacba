#include "cli/scratch_folder.hpp"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <system_error>

#include "core/errors.hpp"

namespace capstan::cli {

ScratchFolder::ScratchFolder(const std::string& prefix) {
  std::string pattern = (std::filesystem::temp_directory_path() / (prefix + "XXXXXX")).string();
  if (mkdtemp(pattern.data()) == nullptr) {
    throw RuntimeFault(pattern + ": cannot be made: " + std::strerror(errno) +
                       ". Name a folder that can be written in TMPDIR.");
  }
  path_ = pattern;
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace capstan::cli
