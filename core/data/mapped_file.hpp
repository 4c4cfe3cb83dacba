#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>

namespace capstan {

/// A regular file mapped into memory, to be read only: whoever writes to the mapping gets SIGSEGV. Pages of the file
/// are no memory of the process's own, so that RLIMIT_DATA (ulimit -d) does not count them, however large the file is.
///
/// A file that somebody shortens while it is mapped raises SIGBUS at the pages it lost: check_size() before a read
/// turns that into an error, but for the instant between the two.
class MappedFile {
 public:
  /// Throws RuntimeFault naming the path: missing, not a regular file, unreadable.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  const std::byte* data() const { return data_; }  // null for an empty file
  std::uint64_t size() const { return size_; }

  /// Throws RuntimeFault when the file has become shorter than it was when it was mapped.
  void check_size() const;

 private:
  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  std::uint64_t size_ = 0;
  std::uint64_t device_ = 0, inode_ = 0;
};

}  // namespace capstan
