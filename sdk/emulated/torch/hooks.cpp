#include <ATen/core/CachingHostAllocator.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/transformers/attention.h>

#include <memory>

#include "device/device.hpp"
#include "device/memory.hpp"
#include "device/order.hpp"
#include "torch/backend.hpp"

namespace capstan::emulated {
namespace {

template <class Base>
struct HooksOf : Base {
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kDevices; }
  void setCurrentDevice(c10::DeviceIndex device) const override { exchange_device(device); }
  c10::DeviceIndex getCurrentDevice() const override { return static_cast<c10::DeviceIndex>(current_device()); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    return static_cast<c10::DeviceIndex>(exchange_device(device));
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return device < 0 ? getCurrentDevice() : exchangeDevice(device);
  }
  bool isPinnedPtr(const void* pointer) const override { return is_pinned(pointer); }
  at::Allocator* getPinnedMemoryAllocator() const override { return at::getHostAllocator(device_type()); }
  at::Device getDeviceFromPtr(void* pointer) const override {
    const int device = device_of(pointer);
    TORCH_CHECK(device >= 0, "emulated device: an address that is not in the memory of a device");
    return {device_type(), static_cast<c10::DeviceIndex>(device)};
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override { return default_generator(device); }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override { return new_generator(device); }
};

struct CudaHooks final : HooksOf<at::CUDAHooksInterface> {
  CudaHooks() = default;
  explicit CudaHooks(at::CUDAHooksArgs) {}
  bool hasCUDA() const override { return true; }
  int getNumGPUs() const override { return kDevices; }
  c10::DeviceIndex current_device() const override { return getCurrentDevice(); }
  void deviceSynchronize(c10::DeviceIndex device) const override { wait_device(device, "device"); }
};

struct PrivateHooks final : HooksOf<at::PrivateUse1HooksInterface> {};

/// Attention by operators, as SDPBackend::math has it: the fused kernels are CUDA's alone.
std::int64_t choose_math(const at::Tensor&, const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
                         double, bool, std::optional<double>, bool) {
  return 0;
}

}  // namespace

void register_hooks(const char* name) {
  if (device_type() == c10::DeviceType::CUDA) {
    at::CUDAHooksRegistry()->Register(
        "CUDAHooks",
        [](at::CUDAHooksArgs args) -> std::unique_ptr<at::CUDAHooksInterface> {
          return std::make_unique<CudaHooks>(args);
        },
        c10::REGISTRY_PREFERRED);
    at::native::_fused_sdp_choice_stub.set_cuda_dispatch_ptr(&choose_math);
  } else {
    at::RegisterPrivateUse1HooksInterface(new PrivateHooks);
    c10::register_privateuse1_backend(name);
  }
}

}  // namespace capstan::emulated
