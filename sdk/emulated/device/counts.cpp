#include "device/counts.hpp"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string_view>

#include "device/device.hpp"
#include "device/memory.hpp"

namespace capstan::emulated {
namespace {

using Table = std::map<std::string, std::uint64_t>;

// Never destroyed, so that whatever ends after this file's statics may count.
Table& waits() {
  static auto* table = new Table;
  return *table;
}
Table& operators() {
  static auto* table = new Table;
  return *table;
}

std::string_view statistics() {
  const char* asked = std::getenv("CAPSTAN_EMULATED_STATS");
  return asked == nullptr ? "" : asked;
}

void print(const char* kind, const Table& table) {
  for (const auto& [name, count] : table) std::fprintf(stderr, "  %s %-48s %" PRIu64 "\n", kind, name.c_str(), count);
}

/// Returns the most memory that any device has given.
std::uint64_t largest_peak() {
  std::uint64_t most = 0;
  for (int device = 0; device < kDevices; ++device) most = std::max(most, memory_of(device).peak);
  return most;
}

void print_all() {
  const Counts& all = counts();
  std::fprintf(stderr,
               "emulated device: %" PRIu64 " operators, %" PRIu64 " kernels, %" PRIu64 " host waits, %" PRIu64
               " blocking copies, %" PRIu64 " B to device, %" PRIu64 " B to host, %" PRIu64 " B at the peak, %" PRIu64
               " faults\n",
               all.operators, all.kernels, all.waits, all.blocking_copies, all.bytes_to_device, all.bytes_to_host,
               largest_peak(), all.faults);
  print("wait", waits());
  if (statistics() == "operators") print("operator", operators());
}

const bool g_prints = [] {
  if (!statistics().empty() && statistics() != "0") std::atexit(print_all);
  return true;
}();

}  // namespace

Counts& counts() {
  static auto* all = new Counts;
  return *all;
}

void note_wait(const char* why) {
  const std::lock_guard lock(device_mutex());
  ++counts().waits;
  ++waits()[why];
}

void note_operator(const std::string& name) {
  const std::lock_guard lock(device_mutex());
  ++counts().operators;
  ++operators()[name];
}

}  // namespace capstan::emulated
