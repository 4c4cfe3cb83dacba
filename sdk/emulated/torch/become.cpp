#include <c10/core/DeviceGuard.h>
#include <c10/core/DeviceType.h>

#include <atomic>
#include <mutex>
#include <stdexcept>
#include <string>

#include "device/faults.hpp"
#include "torch/backend.hpp"

namespace capstan::emulated {
namespace {

std::atomic<c10::DeviceType> g_type{c10::DeviceType::CPU};  // CPU: become() was not called yet

}  // namespace

c10::DeviceType device_type() { return g_type; }

c10::DispatchKey dispatch_key() {
  return device_type() == c10::DeviceType::CUDA ? c10::DispatchKey::CUDA : c10::DispatchKey::PrivateUse1;
}

void become(c10::DeviceType type, const char* name) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (device_type() == type) return;
  if (device_type() != c10::DeviceType::CPU) {
    throw std::runtime_error("this process has the emulated device as '" + c10::DeviceTypeName(device_type(), true) +
                             "' already. Use one type in a process.");
  }
  if (c10::impl::hasDeviceGuardImpl(type)) {
    throw std::runtime_error("this process has another device of type '" + c10::DeviceTypeName(type, true) +
                             "': LibTorch for CUDA is loaded. Use the emulated device as another type, or a LibTorch "
                             "without CUDA.");
  }
  g_type = type;
  register_guard();
  c10::SetAllocator(type, &device_allocator());
  register_host_allocator();
  register_hooks(name);
  register_operators();
  name_faults();
}

}  // namespace capstan::emulated
