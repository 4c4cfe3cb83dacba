#pragma once

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <stdexcept>
#include <string>
#include <system_error>

/// Room for buffers in a file without a name. One call at a time, but that transfers may run beside the other calls
/// as long as the buffers stay.
class TemplatePluginFile {
 public:
  explicit TemplatePluginFile(const std::string& folder) : folder_(folder) {
    std::string name = folder + "/capstan-XXXXXX";
    file_ = ::mkostemp(name.data(), O_CLOEXEC);
    if (file_ < 0) fail("cannot make a file", errno);
    ::unlink(name.c_str());  // nothing is left behind, however the process ends
  }
  ~TemplatePluginFile() { ::close(file_); }
  TemplatePluginFile(const TemplatePluginFile&) = delete;

  const std::string& folder() const { return folder_; }

  std::uint64_t free_bytes() const {
    struct statvfs disk {};
    if (::fstatvfs(file_, &disk) != 0) return UINT64_MAX;  // not known
    return std::uint64_t{disk.f_bavail} * disk.f_frsize;
  }

  /// Reserves the room, so that a disk that is too small is known before the first step. Returns where it begins.
  std::uint64_t reserve(std::uint64_t bytes) {
    for (auto place = released_.begin(); place != released_.end(); ++place) {
      if (place->second < bytes) continue;
      const auto [begin, room] = *place;
      released_.erase(place);
      if (room > bytes) released_[begin + bytes] = room - bytes;
      return begin;
    }
    if (bytes > free_bytes()) {
      throw std::runtime_error(folder_ + ": a buffer needs " + std::to_string(bytes) + " bytes, " +
                               std::to_string(free_bytes()) + " are free.");
    }
    const int error = ::posix_fallocate(file_, static_cast<off_t>(end_), static_cast<off_t>(bytes));
    if (error != 0) fail("cannot reserve " + std::to_string(bytes) + " bytes", error);
    end_ += bytes;
    return end_ - bytes;
  }

  void release(std::uint64_t begin, std::uint64_t bytes) { released_[begin] = bytes; }

  /// Moves all bytes, in as many parts as it takes, and counts them in `done`. Returns an errno, 0 when all is well.
  int move(bool write, void* memory, std::uint64_t place, std::uint64_t bytes, std::uint64_t& done) const {
    for (done = 0; done < bytes;) {
      char* const at = static_cast<char*>(memory) + done;
      const auto where = static_cast<off_t>(place + done);
      const ssize_t moved = write ? ::pwrite(file_, at, bytes - done, where) : ::pread(file_, at, bytes - done, where);
      if (moved < 0 && errno == EINTR) continue;
      if (moved <= 0) return moved < 0 ? errno : EIO;  // the file ends where it should not
      done += static_cast<std::uint64_t>(moved);
    }
    return 0;
  }

 private:
  [[noreturn]] void fail(const std::string& what, int error) const {
    throw std::system_error(error, std::generic_category(), folder_ + ": " + what);
  }

  std::string folder_;
  int file_ = -1;
  std::uint64_t end_ = 0;
  std::map<std::uint64_t, std::uint64_t> released_;  // where rooms begin, and their bytes
};
