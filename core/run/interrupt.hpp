#pragma once

#include <signal.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "core/elastic/save_progress.hpp"

namespace capstan {

/// A run that a signal has ended between two steps.
struct InterruptedRun {
  std::int64_t step, steps;
  std::string save_dir;  // empty: nothing was saved
  bool evaluates;        // at its end
};
/// "interrupted after step 7 of 40. Continue with --resume ckpt"
std::string interrupted_text(const InterruptedRun& run);

/// From construction on the first SIGINT or SIGTERM ends the process with code 130 while nothing of the training has
/// begun; after that it sets a flag, and bounds the part of the run that it falls into and those after it. A second one
/// ends the process at once, as if nobody handled it. The handlers of before are back after destruction.
class Interrupt {
 public:
  /// `speaks`: this process says on standard error what a signal does; one of those that train together. Throws
  /// RuntimeFault where CAPSTAN_INTERRUPT_SECONDS or CAPSTAN_INTERRUPT_SAVE_SECONDS is no number of seconds.
  explicit Interrupt(bool speaks);
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;

  /// From here on this process is the one that speaks, or is not.
  void speaks(bool on);

  static bool requested();

  /// kStep: 10 s after the signal, or twice the time of the longest step so far where that is more, or
  /// CAPSTAN_INTERRUPT_SECONDS. kSave, which is to end well if it can: half an hour, or twice the time of the longest
  /// save so far, or CAPSTAN_INTERRUPT_SAVE_SECONDS; the time counts anew while this process writes.
  enum class Kind { kStep, kSave };
  struct Bound {
    std::chrono::milliseconds time;
    std::string text;  // "10.0 s"
  };
  /// The bound as it is now. [the thread that makes the parts]
  Bound bound(Kind kind) const;

  /// Told how long the part had, by a thread of its own.
  using Unfinished = std::function<void(const std::string& bound)>;

  /// While it lives, a part of the run runs. One that has not ended or got on within its bound, which counts from the
  /// signal where that comes later, ends the process with code 130, after `unfinished`. A part that is made within
  /// another belongs to that one.
  class Part {
   public:
    Part(Interrupt& interrupt, Kind kind, Unfinished unfinished);
    ~Part();
    Part(const Part&) = delete;
    /// The bound counts anew: a batch of an evaluation has ended, for instance.
    void got_on();

   private:
    void note_time();

    Interrupt& interrupt_;
    Kind kind_;
    bool outermost_;
    std::chrono::steady_clock::time_point begun_;
  };

 private:
  void watch();
  void set_deadline();

  std::array<struct sigaction, 2> before_{};                       // what handled SIGINT and SIGTERM
  std::array<std::optional<std::chrono::milliseconds>, 2> given_;  // of each kind, where the environment gives it
  std::mutex mutex_;                                               // guards what follows
  Unfinished unfinished_;    // called where the running part does not end in time; null: none runs
  Kind kind_ = Kind::kStep;  // the kind of the running part
  std::optional<std::chrono::steady_clock::time_point> deadline_;
  std::optional<SaveProgress> progress_;                // since the deadline was set, of kSave
  std::array<std::chrono::milliseconds, 2> longest_{};  // of each kind
  bool ending_ = false;
  std::thread watcher_;
};

}  // namespace capstan
