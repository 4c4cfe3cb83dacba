#pragma once

#include <csignal>

namespace capstan::cli {

/// While a command starts other processes: the first SIGINT or SIGTERM ends it with a summary of what it has, the
/// second the process.
class Stopping {
 public:
  Stopping() {
    struct sigaction action {};
    action.sa_handler = [](int) { asked_ = 1; };
    action.sa_flags = SA_RESETHAND;
    for (const int number : {SIGINT, SIGTERM}) sigaction(number, &action, nullptr);
  }
  static bool requested() { return asked_ != 0; }

 private:
  static inline volatile std::sig_atomic_t asked_ = 0;
};

}  // namespace capstan::cli
