#pragma once

#include <sys/mount.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>

namespace capstan::test {

/// A file system of its own in an existing folder, for as long as it lives; where this user may mount one.
class SmallDisk {
 public:
  SmallDisk(std::filesystem::path folder, const std::string& size) : folder_(std::move(folder)) {
    if (mount("tmpfs", folder_.c_str(), "tmpfs", 0, ("mode=0700,size=" + size).c_str()) != 0)
      reason_ = std::strerror(errno);
  }
  ~SmallDisk() {
    if (mounted()) umount2(folder_.c_str(), MNT_DETACH);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;

  bool mounted() const { return reason_.empty(); }
  const std::string& reason() const { return reason_; }

 private:
  std::filesystem::path folder_;
  std::string reason_;
};

}  // namespace capstan::test
