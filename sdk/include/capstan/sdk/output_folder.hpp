#pragma once

// Folders that a configuration names for output. A header of its own, for programs as well as for plugins.

#include <filesystem>
#include <string>
#include <system_error>

namespace capstan::sdk {

namespace detail {

inline bool is_below(const std::filesystem::path& path, const std::filesystem::path& folder) {
  const std::filesystem::path relative = path.lexically_relative(folder);
  return !relative.empty() && *relative.begin() != "..";
}

}  // namespace detail

/// Creates a folder and those above it. Where that has made one outside of the working directory, the result is a
/// sentence for the log, because paths of another machine make such folders; otherwise it is empty. Throws
/// std::filesystem::filesystem_error.
inline std::string make_folder(const std::filesystem::path& folder) {
  namespace fs = std::filesystem;
  fs::path whole = fs::absolute(folder).lexically_normal();
  if (!whole.has_filename()) whole = whole.parent_path();
  std::error_code ignored;
  fs::path topmost;  // of the folders that are missing
  for (fs::path at = whole; at.has_relative_path() && !fs::exists(at, ignored); at = at.parent_path()) topmost = at;
  fs::create_directories(folder);
  if (topmost.empty() || detail::is_below(whole, fs::current_path(ignored))) return "";
  return "made the folder '" + whole.string() + "'" +
         (topmost == whole ? "" : ", all from '" + topmost.string() + "' on,") + " outside of the working directory.";
}

}  // namespace capstan::sdk
