#include "device/device.hpp"

#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "device/counts.hpp"

namespace capstan::emulated {
namespace {

thread_local int t_device = 0;
const char* g_first_fault = nullptr;  // guarded by device_mutex()

}  // namespace

std::recursive_mutex& device_mutex() {
  static auto* mutex = new std::recursive_mutex;  // threads may use the device while the process ends
  return *mutex;
}

int current_device() { return t_device; }
int exchange_device(int device) { return std::exchange(t_device, device); }

void report_fault(const char* kind, const char* text) {
  {
    const std::lock_guard lock(device_mutex());
    ++counts().faults;
    if (g_first_fault == nullptr) g_first_fault = (new std::string(kind + std::string(": ") + text))->c_str();
  }
  std::fprintf(stderr, "emulated device: %s: %s\n", kind, text);
  const char* aborts = std::getenv("CAPSTAN_EMULATED_ABORT");
  if (aborts != nullptr && std::string_view(aborts) == "1") std::abort();
}

const char* first_fault() {
  const std::lock_guard lock(device_mutex());
  return g_first_fault;
}

}  // namespace capstan::emulated
