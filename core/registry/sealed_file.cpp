#include "core/registry/sealed_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/errors.hpp"

namespace capstan {
namespace {

constexpr std::size_t kLongestName = 200;  // the kernel takes 249 bytes
constexpr std::size_t kAtOnce = std::size_t{1} << 30;

/// False with errno set when the copy failed.
bool copy_all(int from, int to) {
  for (;;) {
    const ssize_t count = ::sendfile(to, from, nullptr, kAtOnce);
    if (count == 0) return true;
    if (count < 0 && errno != EINTR) return false;
  }
}

}  // namespace

SealedFile::SealedFile(const std::filesystem::path& file) {
  const int source = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
  if (source < 0) throw PluginError(file.string() + ": cannot be read: " + std::strerror(errno) + ".");
  const std::string name = file.filename().string().substr(0, kLongestName);
  copy_ = ::memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING);
  const bool sealed = copy_ >= 0 && copy_all(source, copy_) &&
                      ::fcntl(copy_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) == 0;
  const int error = errno;
  ::close(source);
  if (sealed) return;
  if (copy_ >= 0) ::close(copy_);
  throw PluginError(file.string() + ": cannot be copied to memory, where a pinned plugin is checked and loaded: " +
                    std::strerror(error) + ".");
}

SealedFile::~SealedFile() {
  if (copy_ >= 0) ::close(copy_);
}

std::filesystem::path SealedFile::path() const { return "/proc/self/fd/" + std::to_string(copy_); }

}  // namespace capstan
