#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace capstan::cli {

/// What a shared library asks of the dynamic linker, read from the file.
struct SharedLibrary {
  std::vector<std::string> needed;                 // "libnccl.so.2"
  std::vector<std::filesystem::path> search_path;  // RPATH or RUNPATH, $ORIGIN put in
};

/// Nothing when the file cannot be read as a shared library.
std::optional<SharedLibrary> read_shared_library(const std::filesystem::path& file);

/// Where the dynamic linker would find `name` for `library`: its own search path, LD_LIBRARY_PATH, the system's
/// folders. Loads nothing.
std::optional<std::filesystem::path> find_shared_library(const std::string& name, const SharedLibrary& library);

}  // namespace capstan::cli
