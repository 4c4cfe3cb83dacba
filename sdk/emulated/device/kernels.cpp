// The functions that kernels on the CPU find by their names: see capstan/sdk/on_cpu.

#include "device/device.hpp"
#include "device/memory.hpp"
#include "device/order.hpp"

#define CAPSTAN_EMULATED_EXPORT extern "C" __attribute__((visibility("default")))

namespace emulated = capstan::emulated;

CAPSTAN_EMULATED_EXPORT void capstan_emulated_kernel_begin(const char*) { emulated::open_memory(); }
CAPSTAN_EMULATED_EXPORT void capstan_emulated_kernel_end() { emulated::close_memory(); }
CAPSTAN_EMULATED_EXPORT void* capstan_emulated_allocate(std::size_t bytes) {
  return emulated::allocate(emulated::current_device(), bytes);
}
CAPSTAN_EMULATED_EXPORT void capstan_emulated_release(void* memory) { emulated::release(memory); }
CAPSTAN_EMULATED_EXPORT void* capstan_emulated_host_view(const void* pointer) { return emulated::host_view(pointer); }
CAPSTAN_EMULATED_EXPORT void capstan_emulated_synchronize(void*) {
  const int device = emulated::current_device();
  emulated::wait_stream(device, emulated::current_stream(device), "cudaStreamSynchronize");
}
