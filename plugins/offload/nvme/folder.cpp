#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "swap_file.hpp"

namespace capstan::offload {
namespace fs = std::filesystem;

Folder::Folder(fs::path path) : path_(std::move(path)) {
  if (path_.empty()) throw sdk::Error("nvme_path: is empty. Name a folder on a disk.");
  const std::string where = "nvme_path '" + path_.string() + "': ";
  std::error_code failed;
  const fs::file_status target = fs::status(path_, failed);
  if (target.type() == fs::file_type::directory) return;
  if (target.type() == fs::file_type::none)
    throw sdk::Error(where + failed.message() + ". Name a folder that can be read.");
  if (target.type() != fs::file_type::not_found) {
    throw sdk::Error(where + "is a file, not a folder. Name a folder on a disk.");
  }
  if (fs::is_symlink(fs::symlink_status(path_, failed))) {
    throw sdk::Error(where + "is a link to '" + fs::read_symlink(path_, failed).string() +
                     "', which is not there. Make that folder, or name another one.");
  }
  try {
    make(path_);
  } catch (const fs::filesystem_error& error) {
    throw sdk::Error(where + "is not there and cannot be made: " + error.code().message() +
                     ". Name a folder that this user may write to.");
  }
}

void Folder::make(const fs::path& path) {
  if (path.empty() || fs::is_directory(path)) return;
  if (!path.has_filename()) return make(path.parent_path());
  make(path.parent_path());
  if (fs::create_directory(path)) made_.push_back(path);
}

Folder::~Folder() {
  for (auto made = made_.rbegin(); made != made_.rend(); ++made) rmdir(made->c_str());
}

}  // namespace capstan::offload
