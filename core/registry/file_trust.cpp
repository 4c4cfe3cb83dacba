#include "core/registry/file_trust.hpp"

#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

namespace capstan {
namespace {

std::string user_name(uid_t user) {
  std::array<char, 4096> buffer{};
  passwd entry{};
  passwd* found = nullptr;
  if (::getpwuid_r(user, &entry, buffer.data(), buffer.size(), &found) == 0 && found) return found->pw_name;
  return "user " + std::to_string(user);
}

}  // namespace

Trust check_trust(const std::filesystem::path& path, const std::string& what) {
  struct stat status {};
  const std::string name = path.string();
  if (::stat(path.c_str(), &status) != 0) {
    return {.refusal = name + ": cannot be read: " + std::strerror(errno) + "."};
  }
  if (what == "file" && !S_ISREG(status.st_mode)) return {.refusal = name + ": not a regular file."};
  if (status.st_mode & S_IWOTH) {
    return {.refusal = name + ": everybody may write to this " + what +
                       ", so nothing is loaded from it. Take the permission away: chmod o-w '" + name + "'."};
  }
  if (status.st_uid != 0 && status.st_uid != ::geteuid()) {
    return {.refusal = name + ": this " + what + " belongs to " + user_name(status.st_uid) +
                       ", so nothing is loaded from it. It must belong to you (" + user_name(::geteuid()) +
                       ") or to root."};
  }
  // A user's private group has the user's number and no other member.
  if ((status.st_mode & S_IWGRP) && status.st_gid != status.st_uid) {
    return {.warning = name + ": the group of this " + what + " may write to it and so decide what code runs here. " +
                       "If that is not meant: chmod g-w '" + name + "'."};
  }
  return {};
}

}  // namespace capstan
