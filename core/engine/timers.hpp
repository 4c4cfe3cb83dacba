#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/memory/accelerator.hpp"

namespace capstan {

/// Names of timers and milliseconds.
using Spans = std::vector<std::pair<std::string, double>>;

/// Named spans of a step on the device's clock: what `wall_clock_breakdown` prints. Costs nothing while off. [engine]
class Timers {
 public:
  Timers(const Accelerator& accelerator, bool on) : accelerator_(accelerator), on_(on) {}

  /// Measures from construction to destruction and adds it to the timer of that name.
  class Span {
   public:
    Span(Timers& timers, const char* name) : timers_(timers.on_ ? &timers : nullptr), name_(name) {
      if (!timers_) return;
      timers_->add(name, 0);  // takes its place in the line before the spans inside it
      begin_ = timers_->accelerator_.record();
    }
    ~Span() {
      if (timers_) timers_->add(name_, timers_->accelerator_.record()->milliseconds_since(*begin_));
    }
    Span(const Span&) = delete;
    Span& operator=(const Span&) = delete;

   private:
    Timers* timers_;
    const char* name_;
    std::unique_ptr<DeviceEvent> begin_;
  };

  bool on() const { return on_; }
  void add(const std::string& name, double milliseconds);
  /// Name and milliseconds since the last take, in the order in which the timers first ran.
  Spans take();

 private:
  const Accelerator& accelerator_;
  bool on_;
  Spans totals_;
};

/// "[Rank 0] time (ms) | fwd_microstep: 12.34 | ..." with `suffix` behind each name.
std::string timers_line(int rank, const Spans& timers, const std::string& suffix);

}  // namespace capstan
