#include "timeline.hpp"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <chrono>

namespace capstan::profiler {

Timeline::Moment Timeline::mark() {
  if (device_.is_cpu()) {
    times_.push_back(
        std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
            .count());
    return times_.size() - 1;
  }
  c10::Event& event = events_.emplace_back(device_.type(), c10::EventFlag::BACKEND_DEFAULT);  // it takes its time
  event.record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  return events_.size() - 1;
}

void Timeline::settle() {
  for (std::size_t i = times_.size(); i < events_.size(); ++i) {
    events_[i].synchronize();
    times_.push_back(static_cast<std::int64_t>(events_.front().elapsedTime(events_[i]) * 1e6));
  }
}

}  // namespace capstan::profiler
