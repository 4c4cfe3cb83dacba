#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/comm/device_link.hpp"

namespace capstan {

/// A point in the work queued on a device.
class DeviceEvent {
 public:
  virtual ~DeviceEvent() = default;
  /// Milliseconds from `earlier` to this event; waits for both.
  virtual double milliseconds_since(const DeviceEvent& earlier) const = 0;
};

/// Bytes of a device's memory.
struct DeviceMemory {
  std::uint64_t in_use = 0, peak = 0;  // bytes of this process's tensors: now, and the most so far
  std::uint64_t total = 0;
};

/// What the engine needs of the device that it trains on: the host here, others from plugins. [engine]
class Accelerator {
 public:
  virtual ~Accelerator() = default;

  bool is_host() const { return device().is_cpu(); }

  virtual at::Device device() const = 0;
  /// A contiguous tensor on the device, not initialised.
  virtual at::Tensor allocate(at::IntArrayRef shape, at::ScalarType dtype) const = 0;
  /// Copies values, converting the dtype; ordered with the device's other work.
  virtual void copy(at::Tensor& to, const at::Tensor& from) const = 0;
  /// The tensor on the device, with the values that it has now; the device's later work waits for a copy, the calling
  /// thread where it must.
  virtual at::Tensor upload(const at::Tensor& tensor) const = 0;
  /// Copies of tensors of the device in host memory, contiguous, of values that the device's later work does not
  /// change. Waits for them.
  virtual std::vector<at::Tensor> to_host(const std::vector<at::Tensor>& tensors) const = 0;
  /// Makes the device the calling thread's current one. Every thread that uses the device calls it once, except the
  /// thread that built the accelerator. Throws PluginError. [any thread]
  virtual void bind_thread() const = 0;
  /// Marks the end of the work queued so far.
  virtual std::unique_ptr<DeviceEvent> record() const = 0;
  /// The calling thread's current stream, a cudaStream_t on CUDA; null on the host. [any thread]
  virtual void* stream() const = 0;
  /// Orders work of another thread behind the work that the calling thread has queued so far: the current stream of a
  /// thread that calls the result waits for it, and the thread itself does not. Null on the host. [any thread]
  virtual std::function<void()> after_this() const { return nullptr; }
  /// The device's memory; zeros for the host, whose memory other processes share.
  virtual DeviceMemory memory() const = 0;
  /// Null on the host, where tensors need no link of their own to be sent, and where a device's plugin has none.
  virtual DeviceLinks* links() const = 0;
};

/// The host itself: work is done when a call returns.
class CpuAccelerator final : public Accelerator {
 public:
  at::Device device() const override { return at::kCPU; }
  at::Tensor allocate(at::IntArrayRef shape, at::ScalarType dtype) const override;
  void copy(at::Tensor& to, const at::Tensor& from) const override;
  at::Tensor upload(const at::Tensor& tensor) const override { return tensor.to(at::kCPU); }
  std::vector<at::Tensor> to_host(const std::vector<at::Tensor>& tensors) const override;
  void bind_thread() const override {}
  std::unique_ptr<DeviceEvent> record() const override;
  void* stream() const override { return nullptr; }
  DeviceMemory memory() const override { return {}; }
  DeviceLinks* links() const override { return nullptr; }
};

}  // namespace capstan
