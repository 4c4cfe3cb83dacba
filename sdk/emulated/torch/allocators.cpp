#include <ATen/core/CachingHostAllocator.h>
#include <c10/util/Exception.h>

#include <cstring>

#include "device/device.hpp"
#include "device/memory.hpp"
#include "torch/backend.hpp"

namespace capstan::emulated {
namespace {

struct DeviceAllocator final : c10::Allocator {
  at::DataPtr allocate(std::size_t bytes) override {
    const int device = current_device();
    void* memory = bytes > 0 ? emulated::allocate(device, bytes) : nullptr;
    TORCH_CHECK_WITH(OutOfMemoryError, bytes == 0 || memory != nullptr, "emulated device ", device,
                     ": out of memory: ", bytes, " B asked for, ", memory_of(device).in_use, " of ",
                     memory_of(device).total, " B in use.");
    return {memory, memory, &release, c10::Device(device_type(), static_cast<c10::DeviceIndex>(device))};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t count) const override {
    std::memcpy(host_view(to), host_view(from), count);
  }
};

struct PinnedAllocator final : at::HostAllocator {
  at::DataPtr allocate(std::size_t bytes) override {
    void* memory = allocate_pinned(bytes);
    TORCH_CHECK_WITH(OutOfMemoryError, memory != nullptr, "emulated device: no pinned memory of ", bytes, " B.");
    return {memory, memory, &release_pinned, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release_pinned; }
  void copy_data(void* to, const void* from, std::size_t count) const override { std::memcpy(to, from, count); }
  bool record_event(void*, void*, c10::Stream) override { return true; }
  void empty_cache() override {}
  at::HostStats get_stats() override { return {}; }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}
};

PinnedAllocator& pinned_allocator() {
  static auto* allocator = new PinnedAllocator;
  return *allocator;
}

}  // namespace

c10::Allocator& device_allocator() {
  static auto* allocator = new DeviceAllocator;
  return *allocator;
}

void register_host_allocator() { at::setHostAllocator(device_type(), &pinned_allocator()); }

}  // namespace capstan::emulated
