#pragma once

// Where a file goes that is written aside and renamed. A header of its own, for programs as well as for plugins.

#include <filesystem>
#include <string>
#include <system_error>

#include "capstan/sdk/component.hpp"

namespace capstan::sdk {

/// What stands at the path of a file that is to be written.
struct OutputPath {
  std::filesystem::path path;  // behind all links; the file may be missing
  bool is_stream = false;      // a character device, a pipe or an open file (/dev/stdout): written into, never replaced
};

namespace detail {

/// Whether a link stands for an open file of a process, as /dev/stdout does: the file's name may lead elsewhere by now.
inline bool is_of_open_file(const std::filesystem::path& link) {
  std::error_code error;
  return std::filesystem::canonical(link.parent_path(), error).string().starts_with("/proc/");
}

inline const char* name_of_obstacle(std::filesystem::file_type type) {
  if (type == std::filesystem::file_type::directory) return "a folder";
  if (type == std::filesystem::file_type::block) return "a block device";
  return type == std::filesystem::file_type::socket ? "a socket" : nullptr;
}

}  // namespace detail

/// Throws Error where a folder, a socket or a block device is in the way.
inline OutputPath output_path(std::filesystem::path path) {
  namespace fs = std::filesystem;
  constexpr int kMostLinks = 40;  // as in Linux
  std::error_code error;
  const fs::file_type type = fs::status(path, error).type();
  if (type == fs::file_type::character || type == fs::file_type::fifo) return {path, true};
  if (const char* obstacle = detail::name_of_obstacle(type)) {
    throw Error("'" + path.string() + "' cannot be written: it is " + obstacle + ". Name a file.");
  }
  const fs::path given = path;
  for (int links = 0; fs::is_symlink(path, error); ++links) {
    if (detail::is_of_open_file(path)) return {path, true};
    const fs::path target = fs::read_symlink(path, error);
    if (error || links == kMostLinks) {
      throw Error("'" + given.string() + "' cannot be written: it is a link that leads in a circle. Name a file.");
    }
    path = path.parent_path() / target;
  }
  return {path, false};
}

}  // namespace capstan::sdk
