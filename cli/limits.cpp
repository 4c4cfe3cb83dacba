#include "cli/limits.hpp"

#include <sys/resource.h>

#include <cstdio>
#include <fstream>
#include <memory>
#include <sstream>
#include <system_error>

namespace capstan::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kNoLimit = 1ull << 62;  // version 1 writes a number near 2^63 for "none"

std::uint64_t meminfo(const std::string& name) {
  std::ifstream in("/proc/meminfo");
  for (std::string word; in >> word;) {
    std::uint64_t kibibytes = 0;
    if (word == name && in >> kibibytes) return kibibytes * 1024;
  }
  return 0;
}

/// The least that a control group or one above it allows; `file` names the limit in each.
std::optional<Limit> cgroup_limit(const fs::path& root, const fs::path& group, const char* file) {
  std::optional<Limit> least;
  for (fs::path at = group;; at = at.parent_path()) {
    std::ifstream in(root / at.relative_path() / file);
    std::uint64_t bytes = 0;  // "max" is no number
    if (in >> bytes && bytes < kNoLimit && (!least || bytes < least->bytes)) {
      least = {"cgroup " + at.string(), bytes};
    }
    if (at == at.parent_path()) return least;
  }
}

void add_cgroups(std::vector<Limit>& limits) {
  std::ifstream in("/proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {
    // "0::/user.slice" in version 2, "4:memory:/jobs" in version 1.
    const auto first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const fs::path group = line.substr(second + 1);
    std::optional<Limit> found;
    if (controllers.empty()) found = cgroup_limit("/sys/fs/cgroup", group, "memory.max");
    if (controllers == "memory") found = cgroup_limit("/sys/fs/cgroup/memory", group, "memory.limit_in_bytes");
    if (found) limits.push_back(*found);
  }
}

}  // namespace

std::vector<Limit> host_memory_limits() {
  std::vector<Limit> limits;
  if (const std::uint64_t bytes = meminfo("MemAvailable:")) limits.push_back({"host memory, available", bytes});
  add_cgroups(limits);
  return limits;
}

std::vector<Limit> process_memory_limits() {
  std::vector<Limit> limits;
  const auto add = [&](const char* what, auto resource) {
    rlimit limit{};
    if (getrlimit(resource, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) limits.push_back({what, limit.rlim_cur});
  };
  add("ulimit -v", RLIMIT_AS);
  add("ulimit -d", RLIMIT_DATA);
  return limits;
}

std::vector<Limit> gpu_memory() {
  std::vector<Limit> gpus;
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(
      popen("nvidia-smi --query-gpu=name,memory.total --format=csv,noheader,nounits 2>/dev/null", "r"), pclose);
  char line[512];
  while (pipe && std::fgets(line, sizeof line, pipe.get()) != nullptr) {
    const std::string text = line;
    const auto comma = text.rfind(',');
    std::uint64_t mebibytes = 0;
    if (comma == std::string::npos || !(std::istringstream(text.substr(comma + 1)) >> mebibytes)) continue;
    gpus.push_back({"GPU " + std::to_string(gpus.size()) + ", " + text.substr(0, comma), mebibytes << 20});
  }
  return gpus;
}

std::optional<Limit> free_disk(const fs::path& path) {
  std::error_code error;
  fs::path existing = fs::absolute(path, error);
  while (!fs::exists(existing, error) && existing != existing.parent_path()) existing = existing.parent_path();
  const fs::space_info space = fs::space(existing, error);
  if (error) return std::nullopt;
  return Limit{"disk of " + existing.string(), space.available};
}

}  // namespace capstan::cli
