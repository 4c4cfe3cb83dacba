#include "cli/shared_library.hpp"

#include <elf.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

#include "core/errors.hpp"
#include "core/registry/manifest.hpp"

namespace capstan::cli {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> split_path(const std::string& text, const std::string& origin) {
  std::vector<fs::path> folders;
  std::istringstream in(text);
  for (std::string folder; std::getline(in, folder, ':');) {
    for (const std::string& token : {std::string("$ORIGIN"), std::string("${ORIGIN}")}) {
      if (const auto at = folder.find(token); at != std::string::npos) folder.replace(at, token.size(), origin);
    }
    if (!folder.empty()) folders.emplace_back(folder);
  }
  return folders;
}

/// The folders of /etc/ld.so.conf.d and those that are always searched.
std::vector<fs::path> system_folders() {
  std::vector<fs::path> folders;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/etc/ld.so.conf.d", error)) {
    std::ifstream in(entry.path());
    for (std::string line; std::getline(in, line);) {
      if (line.starts_with('/')) folders.emplace_back(line);
    }
  }
  for (const char* folder : {"/lib64", "/usr/lib64", "/lib", "/usr/lib"}) folders.emplace_back(folder);
  return folders;
}

}  // namespace

std::optional<SharedLibrary> read_shared_library(const fs::path& file) {
  std::string dynamic, names;
  try {
    dynamic = read_elf_section(file, ".dynamic");
    names = read_elf_section(file, ".dynstr");
  } catch (const PluginError&) {
    return std::nullopt;
  }
  SharedLibrary library;
  for (std::size_t at = 0; at + sizeof(Elf64_Dyn) <= dynamic.size(); at += sizeof(Elf64_Dyn)) {
    Elf64_Dyn entry;
    std::memcpy(&entry, dynamic.data() + at, sizeof entry);
    if (entry.d_un.d_val >= names.size()) continue;
    const std::string text = names.c_str() + entry.d_un.d_val;
    if (entry.d_tag == DT_NEEDED) library.needed.push_back(text);
    if (entry.d_tag == DT_RPATH || entry.d_tag == DT_RUNPATH) {
      library.search_path = split_path(text, file.parent_path().string());
    }
  }
  return library;
}

std::optional<fs::path> find_shared_library(const std::string& name, const SharedLibrary& library) {
  std::vector<fs::path> folders = library.search_path;
  const char* given = std::getenv("LD_LIBRARY_PATH");
  for (const fs::path& folder : split_path(given ? given : "", ".")) folders.push_back(folder);
  for (const fs::path& folder : system_folders()) folders.push_back(folder);
  std::error_code error;
  for (const fs::path& folder : folders) {
    if (fs::exists(folder / name, error)) return (folder / name).lexically_normal();
  }
  return std::nullopt;
}

}  // namespace capstan::cli
