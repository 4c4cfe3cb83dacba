#include <unistd.h>

#include <filesystem>

#include "core/config/rules/section_rules.hpp"
#include "core/schema/value.hpp"

namespace capstan {
namespace {

namespace fs = std::filesystem;

/// The path itself, or the nearest folder above it that exists: what would be created, is created there.
fs::path nearest_existing(fs::path path) {
  std::error_code error;
  while (!path.empty() && !fs::exists(path, error) && path.has_parent_path() && path.parent_path() != path)
    path = path.parent_path();
  // The last name of a relative path that is not there lies in the working folder.
  return path.empty() || (path.is_relative() && !fs::exists(path, error)) ? fs::path(".") : path;
}

/// The link on the way to the path that leads nowhere, if there is one.
fs::path dangling_link(fs::path path) {
  std::error_code error;
  while (!path.empty() && !fs::exists(path, error)) {
    if (fs::is_symlink(path, error)) return path;
    if (!path.has_parent_path() || path.parent_path() == path) break;
    path = path.parent_path();
  }
  return {};
}

/// Why nothing could be written below the path, or nothing.
std::string storage_fault(const std::string& text) {
  if (text.empty()) return "is empty, but the device is nvme.";
  const fs::path path(text), existing = nearest_existing(path);
  std::error_code error;
  if (const fs::path link = dangling_link(path); !link.empty()) {
    return shown(Json(text)) + " cannot be a folder: " + link.string() + " is a link to " +
           fs::read_symlink(link, error).string() + ", which does not exist.";
  }
  if (!fs::is_directory(existing, error))
    return shown(Json(text)) + " cannot be a folder: " + existing.string() + " is a file.";
  if (::access(existing.c_str(), W_OK | X_OK) == 0) return "";
  if (existing == path) return shown(Json(text)) + " is not writable by this user.";
  return shown(Json(text)) + " does not exist and cannot be created: " + existing.string() +
         " is not writable by this user.";
}

/// Says what this machine lacks. Another one may be the one that trains.
void say(const std::string& path, const std::string& fault, const std::string& advice, bool check_only,
         Problems& problems) {
  if (check_only) {
    problems.notice(path, "on this machine, " + fault);
  } else {
    problems.error(path, fault + " " + advice);
  }
}

}  // namespace

void check_storage(const Effective& values, const Config& config, bool check_only, Problems& problems) {
  bool used = false;
  for (const std::string section : {"zero_optimization.offload_param", "zero_optimization.offload_optimizer"}) {
    if (values.text(section + ".device") != "nvme") continue;
    if (section == kOffloadParameters && values.integer("zero_optimization.stage", 3) < 3) continue;  // it is not used
    used = true;
    const std::string path = section + ".nvme_path", fault = storage_fault(values.text(path));
    if (!fault.empty()) say(path, fault, "Name a folder that can be written.", check_only, problems);
  }
  if (!used || !values.flag("aio.use_gds")) return;
  if (config.device == "cpu") {
    say("aio.use_gds", "true needs CUDA, and the device of this run is the CPU.", "Leave it out.", check_only,
        problems);
  } else {
    problems.notice("aio.use_gds",
                    "has no effect in this release: what goes from a device to storage goes through host "
                    "memory. No result changes.");
  }
}

}  // namespace capstan
