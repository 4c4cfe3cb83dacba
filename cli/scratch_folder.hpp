#pragma once

#include <filesystem>
#include <string>

namespace capstan::cli {

/// A new folder for temporary files, gone with the object.
class ScratchFolder {
 public:
  /// Makes it where temporary files go, with a name that begins with `prefix`. Throws RuntimeFault.
  explicit ScratchFolder(const std::string& prefix);
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace capstan::cli
