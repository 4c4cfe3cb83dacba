#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace capstan::profiler {

/// Moments of a step: by the host's clock, or, where a device trains, by events of the calling thread's current stream,
/// since the host only queues work there. One thread at a time.
class Timeline {
 public:
  using Moment = std::size_t;

  explicit Timeline(c10::Device device = c10::kCPU) : device_(device) {}

  Moment mark();
  /// Waits until the device has come to the last moment. Moments have times from then on.
  void settle();
  /// Nanoseconds since an origin that all moments share.
  std::int64_t ns(Moment moment) const { return times_[moment]; }
  double ms(Moment from, Moment to) const { return static_cast<double>(ns(to) - ns(from)) * 1e-6; }

 private:
  c10::Device device_;
  std::vector<c10::Event> events_;  // of a device
  std::vector<std::int64_t> times_;
};

}  // namespace capstan::profiler
