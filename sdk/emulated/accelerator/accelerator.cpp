// The emulated device as an accelerator. The build makes two plugins of this file: of type "cuda", so that whatever
// names CUDA runs as it is, and of type "emulated", under the key that LibTorch keeps for strangers' devices.

#include "capstan/sdk/accelerator.hpp"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <unistd.h>

#include <exception>
#include <memory>
#include <random>
#include <string>

#include "accelerator/link.hpp"
#include "capstan/sdk/aten.hpp"
#include "device/device.hpp"
#include "device/memory.hpp"
#include "device/order.hpp"
#include "torch/backend.hpp"

namespace capstan::emulated {
namespace {

constexpr c10::DeviceType kType = c10::DeviceType::CAPSTAN_EMULATED_AS;

/// LibTorch looks for devices once in a process, so that the device must be there as soon as this file is loaded. An
/// exception cannot leave the loading: the component throws it.
const std::exception_ptr g_failure = []() -> std::exception_ptr {
  try {
    become(kType, CAPSTAN_EMULATED_TYPE);
    return nullptr;
  } catch (...) {
    return std::current_exception();
  }
}();

class Accelerator {
 public:
  using Link = emulated::Link;
  using Exchange = emulated::Exchange;

  Accelerator(const sdk::Host&, const sdk::Params&) {
    if (g_failure) std::rethrow_exception(g_failure);
  }

  std::uint32_t count() { return kDevices; }

  std::string open(std::uint32_t index) {
    device_ = static_cast<int>(index);
    bind_thread();
    return R"({"name": "emulated", "memory_bytes": )" + std::to_string(memory_of(device_).total) + "}";
  }

  void bind_thread() { c10::impl::VirtualGuardImpl(kType).setDevice(device()); }
  void* stream() { return nullptr; }

  sdk::DeviceMemory memory() {
    const MemoryBytes bytes = memory_of(device_);
    return {bytes.in_use, bytes.peak, bytes.total};
  }

  std::unique_ptr<Event> record() {
    auto event = std::make_unique<Event>();
    emulated::record(*event, device_, current_stream(device_));
    return event;
  }

  double milliseconds(const Event& from, const Event& to) {
    for (Event copy : {from, to}) wait(copy, "timer");
    return static_cast<double>(to.at_ns - from.at_ns) / 1e6;
  }

  capstan_tensor upload(capstan_tensor host) {
    return sdk::give(sdk::borrow(host).pin_memory().to(device(), /*non_blocking=*/true));
  }

  std::string link_id() { return std::to_string(getpid()) + "." + std::to_string(std::random_device{}()); }
  std::unique_ptr<Link> connect(std::string_view id, std::uint32_t rank, std::uint32_t size,
                                const sdk::GivenUp& given_up) {
    return std::make_unique<Link>(std::string(id), rank, size, device_, given_up);
  }

 private:
  c10::Device device() const { return {kType, static_cast<c10::DeviceIndex>(device_)}; }

  int device_ = 0;
};

}  // namespace
}  // namespace capstan::emulated

CAPSTAN_PLUGIN(&capstan::sdk::accelerator<capstan::emulated::Accelerator, CAPSTAN_EMULATED_TYPE>)
