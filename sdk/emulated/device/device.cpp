#include "device/device.hpp"

#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "device/counts.hpp"

namespace capstan::emulated {
namespace {

thread_local int t_device = 0;

}  // namespace

std::recursive_mutex& device_mutex() {
  static auto* mutex = new std::recursive_mutex;  // threads may use the device while the process ends
  return *mutex;
}

int current_device() { return t_device; }
int exchange_device(int device) { return std::exchange(t_device, device); }

void report_fault(const char* kind, const char* text) {
  ++counts().faults;
  std::fprintf(stderr, "emulated device: %s: %s\n", kind, text);
  const char* aborts = std::getenv("CAPSTAN_EMULATED_ABORT");
  if (aborts != nullptr && std::string_view(aborts) == "1") std::abort();
}

}  // namespace capstan::emulated
