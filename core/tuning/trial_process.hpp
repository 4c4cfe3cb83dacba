#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace capstan {

/// A program to be run by itself, and what it may take.
struct TrialCommand {
  std::vector<std::string> words;  // the first is a path
  std::filesystem::path out, err;  // files that take its output
  std::filesystem::path measured;  // once this file is there, the trial has done its work and is ended; empty: none
  std::chrono::milliseconds time_out{60'000};
  std::int64_t process_bytes = 0;             // resident memory that no process of it may exceed; 0: any
  std::int64_t output_bytes = 64 << 20;       // that `out` and `err` may reach, each
  std::int64_t spare_disk_bytes = 256 << 20;  // that must stay free where `out` is
};

enum class TrialEnd {
  kMeasured,  // `measured` is there
  kEnded,     // by itself, with exit_code or signal
  kTimedOut,
  kOutOfMemory,    // a process grew beyond process_bytes
  kTooMuchOutput,  // beyond output_bytes
  kDiskFull,       // below spare_disk_bytes
  kInterrupted,    // by `stop`
  kStuck,          // a process of it does not end, though it was killed
};

struct TrialResult {
  TrialEnd end = TrialEnd::kEnded;
  int exit_code = 0, signal = 0;  // of the first process; signal 0: it ended by itself
  std::int64_t peak_bytes = 0;    // resident memory, the most of any of its processes, as far as it was seen
  double seconds = 0;
};

/// Runs the command in a process group of its own until it ends, has measured, or exceeds what it may take, and then
/// ends every process that it has started, those that left the group or ignore SIGTERM too. None is left when this
/// returns, nor when this process is killed: a keeper process, a child of this one, ends them then. `stop`, asked every
/// few milliseconds, may end it early. Throws RuntimeFault when no process can be started.
TrialResult run_trial(const TrialCommand& command, const std::function<bool()>& stop);

}  // namespace capstan
