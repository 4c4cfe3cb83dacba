#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>
#include <vector>

namespace capstan {

struct ProcessOptions {
  std::vector<std::string> environment;  // "NAME=value", beside the test's own
  std::filesystem::path folder;          // working directory; empty: the test's
  bool terminal = false;                 // standard output and error are one terminal of 80 columns: all in `out`
};

/// How a process ended and what it wrote.
struct ProcessResult {
  int exit_code = -1;  // -1 when a signal ended it
  int signal = 0;
  std::string out, err;
};

/// A program that runs beside the test. Killed with the object, so that no failing test leaves one behind.
class Process {
 public:
  explicit Process(const std::vector<std::string>& command, const ProcessOptions& options = {});
  ~Process();
  Process(const Process&) = delete;

  pid_t pid() const { return pid_; }
  /// Reads until what it wrote, to either stream, holds `text`. False when it ended first.
  bool wait_for_output(const std::string& text);
  void send(int signal) const;
  /// Reads to the end and waits.
  ProcessResult wait();
  /// Reads what it has written so far, without waiting: a process whose pipe is full stands still.
  const ProcessResult& drain();

 private:
  /// Waits for so many milliseconds, -1: for ever. False at the end of both streams, and where nothing came in time.
  bool read_some(int patience);

  pid_t pid_ = -1;
  int out_ = -1, err_ = -1;
  ProcessResult result_;
  bool waited_ = false;
};

inline ProcessResult run_process(const std::vector<std::string>& command, const ProcessOptions& options = {}) {
  return Process(command, options).wait();
}

}  // namespace capstan
