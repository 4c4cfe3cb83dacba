#pragma once

#include <chrono>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

namespace capstan::cli {

/// From construction on the first SIGINT or SIGTERM ends the process with code 130 while no step has begun; after that
/// it sets a flag, and bounds the step that it falls into and those after it. A second one ends the process at once, as
/// if nobody handled it.
class Interrupt {
 public:
  /// Throws RuntimeFault where CAPSTAN_INTERRUPT_SECONDS is no number of seconds.
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;

  static bool requested();

  /// Told how long the step had, "10 s", by a thread of its own.
  using Unfinished = std::function<void(const std::string& bound)>;

  /// While it lives, a step runs. One that has not ended 10 s after the signal, or twice the time of the longest step
  /// so far where that is more, or CAPSTAN_INTERRUPT_SECONDS, ends the process with code 130, after `unfinished`.
  class Step {
   public:
    Step(Interrupt& interrupt, Unfinished unfinished);
    ~Step();
    Step(const Step&) = delete;

   private:
    Interrupt& interrupt_;
    std::chrono::steady_clock::time_point begun_;
  };

 private:
  struct Bound {
    std::chrono::milliseconds time;
    std::string text;
  };
  Bound bound() const;
  void watch();

  std::optional<std::chrono::milliseconds> given_;  // CAPSTAN_INTERRUPT_SECONDS
  std::mutex mutex_;                                // guards what follows
  Unfinished unfinished_;  // called where the running step does not end in time; null: none runs
  std::optional<std::chrono::steady_clock::time_point> deadline_;
  std::chrono::milliseconds longest_{0};
  bool ending_ = false;
  std::thread watcher_;
};

}  // namespace capstan::cli
