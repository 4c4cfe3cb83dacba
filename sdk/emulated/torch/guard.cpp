#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "device/device.hpp"
#include "device/memory.hpp"
#include "device/order.hpp"
#include "torch/backend.hpp"

namespace capstan::emulated {
namespace {

c10::Device device_at(int index) { return {device_type(), static_cast<c10::DeviceIndex>(index)}; }
int index_of(c10::Device device) { return device.index() < 0 ? current_device() : device.index(); }
c10::Stream stream_of(int device, int stream) { return c10::Stream(c10::Stream::UNSAFE, device_at(device), stream); }
int id_of(const c10::Stream& stream) { return static_cast<int>(stream.id()); }
Event& event_of(void* event) { return *static_cast<Event*>(event); }

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return device_type(); }
  c10::Device exchangeDevice(c10::Device device) const override { return device_at(exchange_device(index_of(device))); }
  c10::Device getDevice() const override { return device_at(current_device()); }
  void setDevice(c10::Device device) const override { exchange_device(index_of(device)); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { exchange_device(index_of(device)); }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }

  c10::Stream getStream(c10::Device device) const noexcept override {
    return stream_of(index_of(device), current_stream(index_of(device)));
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return stream_of(index_of(device), 0); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return getNewStream(device, 0); }
  c10::Stream getNewStream(c10::Device device, int) const override {
    return stream_of(index_of(device), new_stream(index_of(device)));
  }
  c10::Stream exchangeStream(c10::Stream stream) const noexcept override {
    return stream_of(stream.device_index(), exchange_stream(stream.device_index(), id_of(stream)));
  }
  bool queryStream(const c10::Stream&) const override { return false; }
  void synchronizeStream(const c10::Stream& stream) const override {
    wait_stream(stream.device_index(), id_of(stream), "stream");
  }
  void synchronizeDevice(c10::DeviceIndex device) const override { wait_device(device, "device"); }

  void record(void** event, const c10::Stream& stream, c10::DeviceIndex, c10::EventFlag) const override {
    if (*event == nullptr) *event = new Event;
    emulated::record(event_of(*event), stream.device_index(), id_of(stream));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) emulated::block(event_of(event), stream.device_index(), id_of(stream));
  }
  bool queryEvent(void* event) const override { return event == nullptr || query(event_of(event)); }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) wait(event_of(event), "event");
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }
  double elapsedTime(void* from, void* to, c10::DeviceIndex) const override {
    return static_cast<double>(event_of(to).at_ns - event_of(from).at_ns) / 1e6;
  }
  void recordDataPtrOnStream(const c10::DataPtr& memory, const c10::Stream& stream) const override {
    record_use(memory.get(), stream.device_index(), id_of(stream));
  }
};

}  // namespace

void register_guard() {
  static const auto* guard = new Guard;
  static const c10::impl::DeviceGuardImplRegistrar registrar(device_type(), guard);
}

}  // namespace capstan::emulated
