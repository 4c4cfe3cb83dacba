#pragma once

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>

namespace capstan::sdk::kernels_on_cpu {

/// Functions of the device that libcapstan_emulated_device.so emulates in this process, once somebody has loaded it.
/// Each member is null where the library lacks the function.
struct EmulatedDevice {
  void (*kernel_begin)(const char* name) = nullptr;
  void (*kernel_end)() = nullptr;
  void* (*allocate)(std::size_t bytes) = nullptr;
  void (*release)(void* memory) = nullptr;
  void* (*host_view)(const void* memory) = nullptr;  // null: not memory of the device
  void (*synchronize)(void* stream) = nullptr;
  std::uint64_t (*waits)() = nullptr;  // how often the host has waited for the device so far
  const char* (*fault)() = nullptr;    // the first fault so far; null: none

  /// Empty without the library, which is looked for at each call until it is found: a plugin may be loaded first. Safe
  /// from several threads.
  static const EmulatedDevice& get() {
    static const EmulatedDevice none;
    void* library = dlopen("libcapstan_emulated_device.so", RTLD_NOLOAD | RTLD_NOW);
    if (!library) return none;
    static const EmulatedDevice found(library);  // never closed: its functions are called up to the end
    return found;
  }

 private:
  EmulatedDevice() = default;
  explicit EmulatedDevice(void* library) {
    find(library, "capstan_emulated_kernel_begin", kernel_begin);
    find(library, "capstan_emulated_kernel_end", kernel_end);
    find(library, "capstan_emulated_allocate", allocate);
    find(library, "capstan_emulated_release", release);
    find(library, "capstan_emulated_host_view", host_view);
    find(library, "capstan_emulated_synchronize", synchronize);
    find(library, "capstan_emulated_waits", waits);
    find(library, "capstan_emulated_fault", fault);
  }
  template <class Function>
  static void find(void* library, const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library, name));
  }
};

}  // namespace capstan::sdk::kernels_on_cpu
