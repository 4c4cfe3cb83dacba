#include "core/engine/progress_report.hpp"

#include <charconv>
#include <cstdio>
#include <fstream>
#include <sstream>

#include "core/text/numbers.hpp"

namespace capstan {
namespace {

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
constexpr std::int64_t kUntimedSteps = 2;  // the first ones allocate and warm caches up

/// The shortest text that reads back to the same number.
std::string shortest(double value) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, value).ptr;
  return {text, end};
}

std::string list(const std::vector<double>& values) {
  std::string text = "[";
  for (std::size_t i = 0; i < values.size(); ++i) text += (i ? ", " : "") + shortest(values[i]);
  return text + "]";
}

/// A "Name:   123 kB" line of a /proc file, in bytes; 0 when there is none.
std::uint64_t proc_bytes(const char* file, const std::string& name) {
  std::ifstream in(file);
  std::string line;
  while (std::getline(in, line)) {
    if (line.compare(0, name.size(), name) == 0) return std::stoull(line.substr(name.size())) * 1024;
  }
  return 0;
}

/// Bytes where the model is: of the device, or of this process where that is the host.
std::pair<std::uint64_t, std::uint64_t> used_and_peak(const DeviceMemory& device) {
  if (device.total > 0) return {device.in_use, device.peak};
  const HostMemory memory = host_memory();
  return {memory.resident, memory.peak};
}

}  // namespace

ProgressReport::ProgressReport(const Config& config, bool momentum_is_momentum)
    : every_(config.report.steps_per_print),
      throughput_(config.report.throughput_timer),
      momentum_is_momentum_(momentum_is_momentum),
      batch_(config.batch.train_batch_size) {}

void ProgressReport::step_begins() { begun_ = Clock::now(); }

std::string ProgressReport::state_line(const Progress& progress, const ParameterGroups& groups) const {
  if (!every_) return "";
  std::string lrs, momenta;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    lrs += (i ? ", " : "") + shortest(groups[i].find("lr")->front());
    const auto* values = groups[i].find(momentum_is_momentum_ ? "momentum" : "betas");
    momenta += i ? ", " : "";
    momenta += values == nullptr ? "0.0" : momentum_is_momentum_ ? shortest(values->front()) : list(*values);
  }
  return "step=" + std::to_string(progress.global_steps) + ", skipped=" + std::to_string(progress.skipped_steps) +
         ", lr=[" + lrs + "], mom=[" + momenta + "]";
}

std::string ProgressReport::throughput_line(std::int64_t global_step, std::int64_t micro_step,
                                            const DeviceMemory& device) const {
  const auto [used, peak] = used_and_peak(device);
  std::string line = "epoch=0/micro_step=" + std::to_string(micro_step) + "/global_step=" + std::to_string(global_step);
  // No timed step yet: a running average would divide by zero.
  if (steps_ > kUntimedSteps) {
    line += ", RunningAvgSamplesPerSec=" +
            fixed(static_cast<double>(batch_) / (total_seconds_ / static_cast<double>(steps_ - kUntimedSteps)), 2);
  }
  return line + ", CurrSamplesPerSec=" + fixed(static_cast<double>(batch_) / (last_seconds_ + 1e-6), 2) +
         ", MemAllocated=" + fixed(static_cast<double>(used) / kGiB, 2) +
         "GB, MaxMemAllocated=" + fixed(static_cast<double>(peak) / kGiB, 2) + "GB";
}

std::string ProgressReport::step_ends(const Progress& progress, std::int64_t micro_step, const ParameterGroups& groups,
                                      const Accelerator& accelerator) {
  last_seconds_ = std::chrono::duration<double>(Clock::now() - begun_).count();
  if (++steps_ > kUntimedSteps) total_seconds_ += last_seconds_;
  if (!every_ || progress.global_steps % *every_ != 0) return "";
  std::string lines = state_line(progress, groups);
  if (throughput_) lines += "\n" + throughput_line(progress.global_steps, micro_step, accelerator.memory());
  return lines;
}

HostMemory host_memory() {
  HostMemory memory;
  memory.resident = proc_bytes("/proc/self/status", "VmRSS:");
  memory.peak = proc_bytes("/proc/self/status", "VmHWM:");
  memory.total = proc_bytes("/proc/meminfo", "MemTotal:");
  memory.used = memory.total - proc_bytes("/proc/meminfo", "MemAvailable:");
  return memory;
}

std::string memory_line(const std::string& label, const DeviceMemory& device) {
  const HostMemory memory = host_memory();
  const auto [used, peak] = used_and_peak(device);
  const auto gib = [](std::uint64_t bytes) { return fixed(static_cast<double>(bytes) / kGiB, 2) + " GB"; };
  const double percent =
      memory.total ? 100.0 * static_cast<double>(memory.used) / static_cast<double>(memory.total) : 0;
  // The host has one heap and no caching allocator: allocated and cached are what is resident.
  return label + "\nMA " + gib(used) + "         Max_MA " + gib(peak) + "         CA " + gib(used) +
         "         Max_CA " + fixed(static_cast<double>(peak) / kGiB, 0) +
         " GB\nCPU Virtual Memory:  used = " + gib(memory.used) + ", percent = " + fixed(percent, 1) + "%";
}

}  // namespace capstan
