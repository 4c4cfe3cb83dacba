#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "capstan/sdk/component.hpp"

namespace capstan::sdk {

/// A regular file mapped into memory, to be read only. Pages of the file are no memory of the process's own.
///
/// A file that somebody shortens while it is mapped raises SIGBUS at the pages it lost: check_size() before a read
/// turns that into an error, but for the instant between the two.
class MappedFile {
 public:
  /// Throws Error naming the path: missing, not a regular file, unreadable.
  explicit MappedFile(std::string path) : path_(std::move(path)) {
    // Non-blocking, so that a named pipe is refused below instead of being waited for.
    const int descriptor = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0) fail(errno);
    struct stat facts {};
    const bool regular = ::fstat(descriptor, &facts) == 0 && S_ISREG(facts.st_mode);
    size_ = regular ? static_cast<std::uint64_t>(facts.st_size) : 0;
    device_ = facts.st_dev;
    inode_ = facts.st_ino;
    void* mapped = size_ > 0 ? ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, descriptor, 0) : nullptr;
    const int reason = errno;
    ::close(descriptor);
    if (!regular) {
      throw Error("'" + path_ + "' is " + (S_ISDIR(facts.st_mode) ? "a folder" : "no regular file") +
                  "; a regular file is needed here.");
    }
    if (mapped == MAP_FAILED) fail(reason);
    data_ = static_cast<const std::byte*>(mapped);
  }
  MappedFile(MappedFile&& other) noexcept
      : path_(std::move(other.path_)),
        data_(std::exchange(other.data_, nullptr)),
        size_(other.size_),
        device_(other.device_),
        inode_(other.inode_) {}
  ~MappedFile() {
    if (data_) ::munmap(const_cast<std::byte*>(data_), size_);
  }

  const std::string& path() const { return path_; }
  const std::byte* data() const { return data_; }  // null for an empty file
  std::uint64_t size() const { return size_; }

  /// The number at an offset, which need not be aligned.
  template <class T>
  T at(std::uint64_t offset) const {
    T value;
    std::memcpy(&value, data_ + offset, sizeof value);
    return value;
  }

  /// Throws Error when the file has become shorter than it was when it was mapped.
  void check_size() const {
    struct stat facts {};
    // A file that was removed or replaced keeps its old content for whoever mapped it.
    if (::stat(path_.c_str(), &facts) != 0 || facts.st_dev != device_ || facts.st_ino != inode_) return;
    if (static_cast<std::uint64_t>(facts.st_size) >= size_) return;
    throw Error("'" + path_ + "' was shortened while it was being read: " + std::to_string(size_) +
                " bytes at the start, " + std::to_string(facts.st_size) + " now.");
  }

 private:
  [[noreturn]] void fail(int reason) const { throw Error("'" + path_ + "': " + std::strerror(reason) + "."); }

  std::string path_;
  const std::byte* data_ = nullptr;
  std::uint64_t size_ = 0;
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

}  // namespace capstan::sdk
