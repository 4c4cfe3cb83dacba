#include "core/elastic/own_folder.hpp"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <ctime>
#include <system_error>

#include "core/errors.hpp"
#include "core/registry/file_trust.hpp"

namespace capstan {
namespace {

namespace fs = std::filesystem;

std::string text_of_error(int number) { return std::generic_category().message(number); }

[[noreturn]] void refuse(const fs::path& path, const std::string& problem) {
  throw RuntimeFault("'" + path.string() + "': " + problem);
}

std::string belongs_to_another(uid_t owner) {
  return "belongs to " + user_name(owner) + ", not to you (" + user_name(geteuid()) +
         "), so that nothing in it is used. Its owner or root can remove it.";
}

std::string octal(mode_t mode) {
  std::array<char, 8> text{};
  std::snprintf(text.data(), text.size(), "%04o", static_cast<unsigned>(mode & 07777));
  return text.data();
}

const char* type_of(mode_t mode) {
  if (S_ISLNK(mode)) return "a link, which is not followed";
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISSOCK(mode)) return "a socket";
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISREG(mode)) return "a regular file";
  return "a device";
}

OpenFile open_folder(const fs::path& path) {
  OpenFile folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (folder) return folder;
  const int failure = errno;
  struct stat facts {};
  if (lstat(path.c_str(), &facts) != 0) refuse(path, "cannot be opened: " + text_of_error(failure) + ".");
  // Mode 0700 keeps this user out of what belongs to another one: the owner explains more than the system's reason.
  if (facts.st_uid != geteuid()) refuse(path, belongs_to_another(facts.st_uid));
  if (!S_ISDIR(facts.st_mode)) {
    refuse(path, std::string("is ") + type_of(facts.st_mode) + ", where a folder was expected. Remove it.");
  }
  refuse(path, "cannot be opened: " + text_of_error(failure) + ".");
}

void check_folder(int descriptor, const fs::path& path, OwnFolder::Closed closed) {
  struct stat facts {};
  if (fstat(descriptor, &facts) != 0) refuse(path, "cannot be examined: " + text_of_error(errno) + ".");
  if (facts.st_uid != geteuid()) refuse(path, belongs_to_another(facts.st_uid));
  const mode_t open_to = facts.st_mode & (closed == OwnFolder::Closed::kToAll ? 077 : 022);
  if (open_to == 0) return;
  const char* what = closed == OwnFolder::Closed::kToAll ? "enter" : "write to";
  refuse(path, "has the mode " + octal(facts.st_mode) + ": other users may " + what +
                   " it, so that nothing in it is used. Remove it, or run: chmod 0700 '" + path.string() + "'.");
}

/// A name that no other process chooses, whatever namespace it is in.
std::string name_beside(const std::string& name) {
  std::array<unsigned char, 8> bytes{};
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    throw RuntimeFault("the kernel gives no random bytes: " + text_of_error(errno) + ".");
  }
  std::string text = name + ".new-";
  for (const unsigned char byte : bytes) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

/// 0, or the system's reason.
int write_all(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = ::write(descriptor, text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return count < 0 ? errno : EIO;
    text.remove_prefix(static_cast<std::size_t>(count));
  }
  return 0;
}

}  // namespace

OpenFile::~OpenFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

OwnFolder::OwnFolder(fs::path path, Closed closed) : path_(std::move(path)), folder_(open_folder(path_)) {
  check_folder(descriptor(), path_, closed);
}

OwnFolder OwnFolder::make(const fs::path& path, Closed closed) {
  std::error_code error;
  if (path.has_parent_path()) fs::create_directories(path.parent_path(), error);
  if (!error && mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) error = {errno, std::generic_category()};
  if (error) throw RuntimeFault("folder '" + path.string() + "' cannot be created: " + error.message() + ".");
  return OwnFolder(path, closed);
}

bool OwnFolder::move_to(const fs::path& path) {
  if (!is_at_its_path() || rename(path_.c_str(), path.c_str()) != 0) return false;
  path_ = path;
  return true;
}

bool OwnFolder::is_at_its_path() const {
  struct stat own {
  }, there{};
  return fstat(descriptor(), &own) == 0 && lstat(path_.c_str(), &there) == 0 && own.st_dev == there.st_dev &&
         own.st_ino == there.st_ino;
}

double OwnFolder::seconds_since_change() const {
  struct stat facts {};
  timespec now{};
  if (fstat(descriptor(), &facts) != 0 || clock_gettime(CLOCK_REALTIME, &now) != 0) return 0;
  return static_cast<double>(now.tv_sec - facts.st_mtim.tv_sec) +
         static_cast<double>(now.tv_nsec - facts.st_mtim.tv_nsec) * 1e-9;
}

OpenFile OwnFolder::open(const std::string& name, int flags) const {
  // O_NONBLOCK: a FIFO without a reader or a writer would be waited for.
  OpenFile file(openat(descriptor(), name.c_str(), flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600));
  if (file) {
    check_own_file(file.descriptor(), path_ / name);
    return file;
  }
  const int failure = errno;
  struct stat facts {};
  const bool exists = fstatat(descriptor(), name.c_str(), &facts, AT_SYMLINK_NOFOLLOW) == 0;
  if (failure == ENOENT && !exists && (flags & O_CREAT) == 0) return {};
  if (exists && !S_ISREG(facts.st_mode)) {
    refuse(path_ / name,
           std::string("is ") + type_of(facts.st_mode) + ", where a regular file was expected. Remove it.");
  }
  refuse(path_ / name, "cannot be opened: " + text_of_error(failure) + ".");
}

std::optional<std::string> OwnFolder::read(const std::string& name) const {
  const OpenFile file = open(name, O_RDONLY);
  if (!file) return std::nullopt;
  std::string text;
  std::array<char, 4096> part;
  while (true) {
    const ssize_t count = ::read(file.descriptor(), part.data(), part.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) refuse(path_ / name, "cannot be read: " + text_of_error(errno) + ".");
    if (count == 0) return text;
    text.append(part.data(), static_cast<std::size_t>(count));
  }
}

std::string OwnFolder::write_aside(const std::string& name, const std::string& text) const {
  std::string aside = name_beside(name);
  const OpenFile file(openat(descriptor(), aside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  const int failure = file ? write_all(file.descriptor(), text) : errno;
  if (failure == 0) return aside;
  remove(aside);
  refuse(path_ / name, "cannot be written: " + text_of_error(failure) + ".");
}

void OwnFolder::write(const std::string& name, const std::string& text) const {
  const std::string aside = write_aside(name, text);
  if (renameat(descriptor(), aside.c_str(), descriptor(), name.c_str()) == 0) return;
  const int failure = errno;
  remove(aside);
  refuse(path_ / name, "cannot be written: " + text_of_error(failure) + ".");
}

bool OwnFolder::write_first(const std::string& name, const std::string& text) const {
  const std::string aside = write_aside(name, text);
  const int failure = linkat(descriptor(), aside.c_str(), descriptor(), name.c_str(), 0) == 0 ? 0 : errno;
  remove(aside);
  if (failure != 0 && failure != EEXIST) refuse(path_ / name, "cannot be written: " + text_of_error(failure) + ".");
  return failure == 0;
}

bool OwnFolder::has(const std::string& name) const { return faccessat(descriptor(), name.c_str(), F_OK, 0) == 0; }

void OwnFolder::remove(const std::string& name) const noexcept { unlinkat(descriptor(), name.c_str(), 0); }

void check_own_file(int descriptor, const fs::path& path) {
  struct stat facts {};
  if (fstat(descriptor, &facts) != 0) refuse(path, "cannot be examined: " + text_of_error(errno) + ".");
  if (facts.st_uid != geteuid()) refuse(path, belongs_to_another(facts.st_uid));
  if (S_ISREG(facts.st_mode)) return;
  refuse(path, std::string("is ") + type_of(facts.st_mode) + ", where a regular file was expected. Remove it.");
}

std::vector<fs::path> paths_in(const fs::path& folder) {
  std::vector<fs::path> paths;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    paths.push_back(entry->path());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

}  // namespace capstan
