#include "core/comm/port_file.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <sstream>
#include <system_error>
#include <thread>
#include <utility>

#include "core/errors.hpp"
#include "core/registry/file_trust.hpp"

namespace capstan {
namespace {

std::string system_reason() { return std::generic_category().message(errno); }

/// Closes a descriptor, and with it gives up its lock.
class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  Descriptor(const Descriptor&) = delete;
  int number() const { return number_; }
  int release() { return std::exchange(number_, -1); }

 private:
  int number_;
};

}  // namespace

std::string random_secret() {
  std::array<unsigned char, 16> bytes;
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
    throw RuntimeFault("the kernel gives no random bytes: " + system_reason() + ".");
  std::string text;
  for (const unsigned char byte : bytes) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

void PortFile::fail(const std::string& problem) const {
  throw RuntimeFault(
      "'" + path_.string() + "': " + problem +
      " The processes of a start without MASTER_ADDR and MASTER_PORT meet through this file; set both, or "
      "XDG_RUNTIME_DIR to a folder of yours.");
}

PortFile::~PortFile() {
  if (written_ < 0) return;
  ::unlink(path_.c_str());
  ::close(written_);
}

void PortFile::write(const PortEntry& entry) {
  // A new file (O_EXCL, mode 0600) of a name that nobody can guess, which appears at its place whole and locked.
  std::string aside = path_.string() + ".XXXXXX";
  Descriptor file(::mkostemp(aside.data(), O_CLOEXEC));
  if (file.number() < 0) fail("cannot be written: " + system_reason() + ".");
  const std::string text = std::to_string(entry.port) + " " + entry.secret + "\n";
  const bool written = ::flock(file.number(), LOCK_EX | LOCK_NB) == 0 &&
                       ::write(file.number(), text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
                       ::rename(aside.c_str(), path_.c_str()) == 0;
  if (!written) {
    const std::string why = system_reason();
    ::unlink(aside.c_str());
    fail("cannot be written: " + why + ".");
  }
  written_ = file.release();
}

PortFile::Found PortFile::look(PortEntry& entry) const {
  const Descriptor file(::open(path_.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (file.number() < 0 && errno == ENOENT) return Found::kNothing;
  if (file.number() < 0 && errno == ELOOP) fail("is a link, which is not followed. Delete it.");
  if (file.number() < 0 && errno != EACCES) fail("cannot be read: " + system_reason() + ".");
  struct stat status {};
  if ((file.number() < 0 ? ::lstat(path_.c_str(), &status) : ::fstat(file.number(), &status)) != 0) {
    return Found::kNothing;
  }
  if (status.st_uid != ::geteuid()) {
    fail("belongs to " + user_name(status.st_uid) + ", not to you (" + user_name(::geteuid()) +
         "), so the port in it is not believed. Delete it.");
  }
  if (file.number() < 0 || !S_ISREG(status.st_mode) || (status.st_mode & 077) != 0) return Found::kLeftover;
  // The lock of the process that wrote it ended with that process.
  if (::flock(file.number(), LOCK_SH | LOCK_NB) == 0 || errno != EWOULDBLOCK) return Found::kLeftover;
  std::array<char, 128> text{};
  const ssize_t count = ::read(file.number(), text.data(), text.size() - 1);
  std::istringstream fields(count > 0 ? text.data() : "");
  return fields >> entry.port >> entry.secret && entry.port > 0 && entry.port <= 65535 ? Found::kEntry
                                                                                       : Found::kLeftover;
}

std::optional<PortEntry> PortFile::peek() const {
  PortEntry entry;
  return look(entry) == Found::kEntry ? std::optional(entry) : std::nullopt;
}

PortEntry PortFile::read(std::chrono::milliseconds patience, const std::function<bool()>& given_up) const {
  const auto give_up = std::chrono::steady_clock::now() + patience;
  for (;;) {
    PortEntry entry;
    const Found found = look(entry);
    if (found == Found::kEntry) return entry;
    if (std::chrono::steady_clock::now() >= give_up || (given_up && given_up())) {
      throw RuntimeFault("'" + path_.string() + "': rank 0 has not written its port there." +
                         (found == Found::kLeftover ? " What lies there was left by an earlier start." : "") +
                         " Did it start on this host?");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

}  // namespace capstan
