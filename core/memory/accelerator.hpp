#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace capstan {

/// A point in the work queued on a device.
class DeviceEvent {
 public:
  virtual ~DeviceEvent() = default;
  /// Milliseconds from `earlier` to this event; waits for both.
  virtual double milliseconds_since(const DeviceEvent& earlier) const = 0;
};

/// What the engine needs of the device that it trains on. One implementation a kind of device. [engine]
class Accelerator {
 public:
  virtual ~Accelerator() = default;

  virtual at::Device device() const = 0;
  /// Uninitialised contiguous memory.
  virtual at::Tensor allocate(at::IntArrayRef shape, at::ScalarType dtype) const = 0;
  /// Copies values, converting the dtype; ordered with the device's other work.
  virtual void copy(at::Tensor& to, const at::Tensor& from) const = 0;
  /// Marks the end of the work queued so far.
  virtual std::unique_ptr<DeviceEvent> record() const = 0;
};

/// The host itself: work is done when a call returns.
class CpuAccelerator final : public Accelerator {
 public:
  at::Device device() const override { return at::kCPU; }
  at::Tensor allocate(at::IntArrayRef shape, at::ScalarType dtype) const override;
  void copy(at::Tensor& to, const at::Tensor& from) const override;
  std::unique_ptr<DeviceEvent> record() const override;
};

}  // namespace capstan
