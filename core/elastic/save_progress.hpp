#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>

namespace capstan {

/// The number of seconds above 0 that an environment variable holds; none where it is not set. Throws RuntimeFault.
std::optional<std::chrono::milliseconds> seconds_in(const char* variable);

/// How long a save may write nothing before it is given up: CAPSTAN_INTERRUPT_SAVE_SECONDS, else half an hour. Throws
/// RuntimeFault.
std::chrono::milliseconds time_to_write();

/// The bytes that a process has written so far, in units of 64 KiB: smaller amounts are not a save's. 0 where the
/// kernel does not count them.
std::int64_t written_by(pid_t process);

/// Tells a save that gets on from one that hangs, by what this process writes.
class SaveProgress {
 public:
  SaveProgress();
  /// Whether the process has written something since the last call, or since the construction.
  bool got_on();

 private:
  std::int64_t written_;
};

}  // namespace capstan
