// The functions that kernels on the CPU and the conformance kit find by their names: see capstan/sdk/on_cpu.

#include <cstdint>

#include "device/counts.hpp"
#include "device/device.hpp"
#include "device/kernels.hpp"
#include "device/memory.hpp"
#include "device/order.hpp"

#define CAPSTAN_EMULATED_EXPORT extern "C" __attribute__((visibility("default")))

namespace emulated = capstan::emulated;

CAPSTAN_EMULATED_EXPORT void capstan_emulated_kernel_begin(const char* name) { emulated::begin_kernel(name); }
CAPSTAN_EMULATED_EXPORT void capstan_emulated_kernel_end() { emulated::end_kernel(); }
CAPSTAN_EMULATED_EXPORT void* capstan_emulated_allocate(std::size_t bytes) {
  return emulated::allocate(emulated::current_device(), bytes);
}
CAPSTAN_EMULATED_EXPORT void capstan_emulated_release(void* memory) { emulated::release(memory); }
CAPSTAN_EMULATED_EXPORT void* capstan_emulated_host_view(const void* pointer) { return emulated::host_view(pointer); }
CAPSTAN_EMULATED_EXPORT void capstan_emulated_synchronize(void*) {
  const int device = emulated::current_device();
  emulated::wait_stream(device, emulated::current_stream(device), "cudaStreamSynchronize");
}
/// How often the host has waited for the device so far.
CAPSTAN_EMULATED_EXPORT std::uint64_t capstan_emulated_waits() {
  const std::lock_guard lock(emulated::device_mutex());
  return emulated::counts().waits;
}
/// The first fault so far, a sentence without its full stop, or null. The text stays where it is.
CAPSTAN_EMULATED_EXPORT const char* capstan_emulated_fault() { return emulated::first_fault(); }
