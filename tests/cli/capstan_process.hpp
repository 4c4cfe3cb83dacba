#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

namespace capstan::test {

/// How a program ended, and all that it wrote to standard output and standard error.
struct ProgramEnd {
  int exit_code = -1;  // -1 when a signal ended it
  int signal = 0;
  std::string text;
};

/// A program running beside the test, started with its words; killed when the test leaves it.
class Program {
 public:
  /// `in_child` runs between fork and exec.
  explicit Program(const std::vector<std::string>& words, const std::function<void()>& in_child = {});
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  /// Reads until the output contains `text`. False when the program ended or 60 seconds passed without.
  bool wait_for(const std::string& text);
  void send(int signal);
  ProgramEnd wait();

 private:
  bool read_more(int timeout_ms);
  pid_t pid_;
  int output_;
  std::string text_;
};

/// The words of `capstan <arguments>` of this build.
std::vector<std::string> capstan_words(const std::vector<std::string>& arguments);

ProgramEnd run_program(const std::vector<std::string>& words, const std::function<void()>& in_child = {});

inline ProgramEnd run_capstan(const std::vector<std::string>& arguments) {
  return run_program(capstan_words(arguments));
}

}  // namespace capstan::test
