#include "core/comm/run_identity.hpp"

#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <random>
#include <sstream>

#include "core/xxh3.hpp"

namespace capstan {
namespace {

std::string file_text(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// A field of /proc/PROCESS/stat as proc(5) counts them; empty where the system does not show the process.
std::string stat_field(const std::string& process, int number) {
  const std::string stat = file_text("/proc/" + process + "/stat");
  const std::size_t behind_name = stat.rfind(')');  // of the second field
  if (behind_name == std::string::npos) return "";
  std::istringstream fields(stat.substr(behind_name + 1));
  std::string field;
  for (int i = 3; i <= number; ++i) fields >> field;
  return fields ? field : "";
}

constexpr int kParent = 4, kStartTime = 22;

/// The next process above this one that was started without the variable: scripts in between have inherited it.
std::string starter_without(const std::string& variable) {
  std::string process = std::to_string(getppid());
  while (true) {
    const std::string environment = '\0' + file_text("/proc/" + process + "/environ");
    if (environment.find('\0' + variable + '=') == std::string::npos) return process;
    const std::string above = stat_field(process, kParent);
    if (above.empty() || above == "0") return process;
    process = above;
  }
}

constexpr const char *kTorchrun = "TORCHELASTIC_RUN_ID", *kElastic = "CAPSTAN_ELASTIC_FOLDER";

std::atomic<int> ids_made{0};

}  // namespace

std::string restarting_parent(const Environment& environment) {
  const bool torchrun = environment(kTorchrun).has_value();
  if (!torchrun && !environment(kElastic)) return "";
  const std::string parent = starter_without(torchrun ? kTorchrun : kElastic), start = stat_field(parent, kStartTime);
  if (start.empty()) return "";
  const std::string text = file_text("/proc/sys/kernel/random/boot_id") + parent + " " + start;
  return hex(xxh3(text.data(), text.size()));
}

std::string new_run_id(const Environment& environment) {
  const int made = ids_made++;
  const std::string parent = environment(kTorchrun) ? restarting_parent(environment) : "";
  if (!parent.empty()) {
    const std::string text = parent + " " + std::to_string(made);
    return hex(xxh3(text.data(), text.size()));
  }
  std::random_device random;
  return hex(static_cast<std::uint64_t>(random()) << 32 | random());
}

}  // namespace capstan
