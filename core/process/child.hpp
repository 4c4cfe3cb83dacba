#pragma once

#include <sys/types.h>

#include <csignal>
#include <functional>
#include <string>
#include <vector>

namespace capstan {

/// A program that this process starts.
struct ChildCommand {
  std::vector<std::string> words;   // the first is a path
  sigset_t mask;                    // the signals that the program begins with as blocked
  std::string caller;               // opens the sentence that the child prints where there is no such program
  int signal_of_parent = SIGTERM;   // that the child gets when this process ends
  std::function<void()> prepare{};  // runs in the child before it becomes the program; null: nothing
};

/// Starts a program in a child process. The child prints a sentence and ends with exit code 127 where the program
/// cannot be started. Throws RuntimeFault where there is no process to be had.
pid_t start_child(const ChildCommand& command);

/// Starts a copy of this process, which runs `work` and ends with the exit code that `work` returns. The copy gets
/// `signal_of_parent` when this process ends, and has no descriptors but 0, 1, 2 and `kept`: it holds no lock of this
/// process. This process must have one thread, and `work` must throw nothing. Throws RuntimeFault, which begins with
/// `caller`, where there is no process to be had.
pid_t start_copy(const std::string& caller, int signal_of_parent, int kept, const std::function<int()>& work);

/// How a process ended, as a shell tells: the exit code, or 128 + the signal.
int code_of(int status);
/// "was killed by SIGKILL", "ended with exit code 1".
std::string how_it_ended(int status);

}  // namespace capstan
