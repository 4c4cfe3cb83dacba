#include "append_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace capstan::monitors {
namespace {

void append_all(int fd, std::string_view bytes, const std::filesystem::path& file) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail_on(file, errno);
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
}

}  // namespace

void fail_on(const std::filesystem::path& file, int error) {
  throw std::runtime_error(file.string() + ": " + std::strerror(error) + ".");
}

AppendFile::AppendFile(std::filesystem::path file, std::string_view header) : path_(std::move(file)) {
  fd_ = ::open(path_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
  if (fd_ < 0) fail_on(path_, errno);
  struct stat status {};
  if (::fstat(fd_, &status) == 0 && status.st_size == 0) append_all(fd_, header, path_);
}

AppendFile::~AppendFile() {
  if (fd_ >= 0) ::close(fd_);
}

AppendFile::AppendFile(AppendFile&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}

void AppendFile::append(std::string_view bytes) { append_all(fd_, bytes, path_); }

}  // namespace capstan::monitors
