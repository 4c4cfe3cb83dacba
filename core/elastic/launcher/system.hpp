#pragma once

#include <sys/types.h>

#include <chrono>
#include <csignal>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

namespace capstan {

/// Time, processes and signals, as a launcher needs them. A test has a system of its own. [one thread]
class LauncherSystem {
 public:
  using Clock = std::chrono::steady_clock;

  virtual ~LauncherSystem() = default;
  virtual Clock::time_point now() const = 0;
  /// Starts a process of the launch. `prepare` runs in it before it becomes its program. Throws RuntimeFault.
  virtual pid_t start(const std::function<void()>& prepare) = 0;
  virtual void send(pid_t process, int signal) = 0;
  /// How the process has changed since the last call, as waitpid() says it: it has ended, stopped or been continued.
  virtual std::optional<int> change_of(pid_t process) = 0;
  /// Waits until the process has ended.
  virtual void await_end(pid_t process) = 0;
  /// Waits for a signal, something at one of these descriptors, or a moment.
  virtual void await(const std::vector<int>& descriptors) = 0;
  /// The signal that has come next; 0: none.
  virtual int next_signal() = 0;
};

/// The system of this host. While it lives, SIGCHLD and `signals` are taken from next_signal() only. One thread uses
/// it, which must be the process's only one.
class HostSystem final : public LauncherSystem {
 public:
  /// `words`: what its processes execute. `share`: so many of them share the cores.
  HostSystem(std::vector<std::string> words, int share,
             std::initializer_list<int> signals = {SIGINT, SIGTERM, SIGUSR1});
  ~HostSystem() override;
  HostSystem(const HostSystem&) = delete;

  Clock::time_point now() const override { return Clock::now(); }
  pid_t start(const std::function<void()>& prepare) override;
  void send(pid_t process, int signal) override;
  std::optional<int> change_of(pid_t process) override;
  void await_end(pid_t process) override;
  void await(const std::vector<int>& descriptors) override;
  int next_signal() override;
  /// Whether a process sent the signal that next_signal() returned last: not the terminal, which tells all processes.
  bool sent_by_process() const { return sent_by_process_; }

 private:
  const std::vector<std::string> words_;
  const int share_;
  sigset_t signals_, before_;
  int signal_descriptor_ = -1;
  bool sent_by_process_ = false;
};

}  // namespace capstan
