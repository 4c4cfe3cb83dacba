#include "core/data/mapped_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <system_error>

#include "core/errors.hpp"

namespace capstan {
namespace {

[[noreturn]] void fail(const std::filesystem::path& path, int reason) {
  throw RuntimeFault("'" + path.string() + "': " + std::generic_category().message(reason) + ".");
}

/// A descriptor for as long as it takes to map.
class Descriptor {
 public:
  explicit Descriptor(const std::filesystem::path& path)
      // Non-blocking, so that a named pipe is refused below instead of being waited for.
      : number_(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    if (number_ < 0) fail(path, errno);
  }
  ~Descriptor() { close(number_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int number() const { return number_; }

 private:
  int number_;
};

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path) {
  const Descriptor file(path);
  struct stat facts {};
  if (fstat(file.number(), &facts) != 0) fail(path, errno);
  if (!S_ISREG(facts.st_mode)) {
    throw RuntimeFault("'" + path.string() + "' is " + (S_ISDIR(facts.st_mode) ? "a folder" : "no regular file") +
                       "; a regular file is needed here.");
  }
  size_ = static_cast<std::uint64_t>(facts.st_size);
  device_ = facts.st_dev;
  inode_ = facts.st_ino;
  if (size_ == 0) return;
  void* mapped = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.number(), 0);
  if (mapped == MAP_FAILED) fail(path, errno);
  data_ = static_cast<const std::byte*>(mapped);
}

MappedFile::~MappedFile() {
  if (data_) munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::check_size() const {
  struct stat facts {};
  // A file that was removed or replaced keeps its old content for whoever mapped it.
  if (stat(path_.c_str(), &facts) != 0 || facts.st_dev != device_ || facts.st_ino != inode_) return;
  if (static_cast<std::uint64_t>(facts.st_size) >= size_) return;
  throw RuntimeFault("'" + path_.string() + "' was shortened while it was being read: " + std::to_string(size_) +
                     " bytes at the start, " + std::to_string(facts.st_size) + " now.");
}

}  // namespace capstan
