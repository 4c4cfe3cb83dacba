#include "core/registry/file_trust.hpp"

#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <deque>
#include <set>
#include <vector>

namespace capstan {
namespace {

namespace fs = std::filesystem;

constexpr int kMostLinks = 40;  // as the kernel allows

bool belongs_to_a_stranger(const struct stat& status) { return status.st_uid != 0 && status.st_uid != ::geteuid(); }

/// A user's private group has the user's number and no other member.
bool open_to_a_group(const struct stat& status) {
  return (status.st_mode & S_IWGRP) && status.st_gid != status.st_uid && !(status.st_mode & S_ISVTX);
}

std::string must_belong() { return "It must belong to you (" + user_name(::geteuid()) + ") or to root."; }

/// Warns of the group that may write to a file or folder.
std::string group_warning(const struct stat& status, const std::string& name, const std::string& what) {
  if (!open_to_a_group(status)) return "";
  return name + ": the group of this " + what + " may write to it and so decide what code runs here. " +
         "If that is not meant: chmod g-w '" + name + "'.";
}

/// The folders in which the kernel looks up the names of an absolute path, links resolved, in order and each once.
std::vector<fs::path> folders_on_the_way(const fs::path& path) {
  std::vector<fs::path> folders;
  std::set<fs::path> seen;
  std::deque<fs::path> names(path.begin(), path.end());
  fs::path at = "/";
  for (int links = 0; !names.empty() && links <= kMostLinks;) {
    const fs::path name = names.front();
    names.pop_front();
    if (name.empty() || name == "." || name == "/") {
      if (name == "/") at = name;
      continue;
    }
    if (name == "..") {
      at = at.parent_path();
      continue;
    }
    if (seen.insert(at).second) folders.push_back(at);
    std::error_code not_a_link;
    const fs::path target = fs::read_symlink(at / name, not_a_link);
    if (not_a_link) {
      at /= name;
    } else {
      names.insert(names.begin(), target.begin(), target.end());
      ++links;
    }
  }
  return folders;
}

Trust check_way(const fs::path& path) {
  std::error_code error;
  Trust trust;
  for (const fs::path& folder : folders_on_the_way(fs::absolute(path, error))) {
    struct stat status {};
    const std::string name = "'" + folder.string() + "'";
    if (::lstat(folder.c_str(), &status) != 0) {
      trust.refusal = path.string() + ": the folder " + name + " cannot be looked at: " + std::strerror(errno) + ".";
    } else if (belongs_to_a_stranger(status)) {
      trust.refusal = path.string() + ": the path leads through " + name + ", which belongs to " +
                      user_name(status.st_uid) + ", so nothing is loaded from it. " + must_belong();
    } else if ((status.st_mode & S_IWOTH) && !(status.st_mode & S_ISVTX)) {
      trust.refusal = path.string() + ": the path leads through " + name +
                      ", to which everybody may write, so nothing is loaded from it. Take the permission away: chmod "
                      "o-w " +
                      name + ".";
    } else if (trust.warning.empty()) {
      trust.warning = group_warning(status, folder.string(), "folder");
    }
    if (!trust.refusal.empty()) break;
  }
  return trust;
}

/// What a file or folder says of itself.
Trust check_itself(const fs::path& path, const std::string& what) {
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
  if (belongs_to_a_stranger(status)) {
    return {.refusal = name + ": this " + what + " belongs to " + user_name(status.st_uid) +
                       ", so nothing is loaded from it. " + must_belong()};
  }
  return {.warning = group_warning(status, name, what)};
}

}  // namespace

std::string user_name(uid_t user) {
  std::array<char, 4096> buffer{};
  passwd entry{};
  passwd* found = nullptr;
  if (::getpwuid_r(user, &entry, buffer.data(), buffer.size(), &found) == 0 && found) return found->pw_name;
  return "user " + std::to_string(user);
}

Trust check_trust(const fs::path& path, const std::string& what) {
  Trust trust = check_itself(path, what);
  if (!trust.refusal.empty()) return trust;
  Trust way = check_way(path);
  if (way.warning.empty() || !trust.warning.empty()) way.warning = std::move(trust.warning);
  return way;
}

Trust check_trust_inside(const fs::path& file) {
  std::error_code error;  // which check_itself names
  return fs::is_symlink(file, error) ? check_trust(file, "file") : check_itself(file, "file");
}

}  // namespace capstan
