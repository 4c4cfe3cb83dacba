#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "cli/commands.hpp"
#include "cli/launch/elastic_launch.hpp"
#include "cli/program.hpp"
#include "core/elastic/launcher/launched_process.hpp"
#include "core/elastic/launcher/secret.hpp"
#include "core/elastic/launcher/status.hpp"
#include "core/elastic/launcher/system.hpp"
#include "core/errors.hpp"
#include "core/log.hpp"
#include "core/process/child.hpp"

namespace capstan::cli {
namespace {

using Clock = std::chrono::steady_clock;

/// How long the others may take to notice that a rank is gone and to say so, and then to end when asked to.
constexpr std::chrono::milliseconds kNoticing{2000}, kEnding{1000};
/// How long the others may take to end when a rank has ended because of a signal: they end after the same step.
constexpr std::chrono::seconds kEndingToo{30};

/// A socket at which rank 0 will open its store: bound here, so that no other program can take the port in between.
class Listener {
 public:
  Listener() : descriptor_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    if (descriptor_ < 0 || bind(descriptor_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
        listen(descriptor_, SOMAXCONN) != 0 ||
        getsockname(descriptor_, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
      throw RuntimeFault(std::string("launch: no port to listen at: ") + std::strerror(errno) + ".");
    }
    port_ = ntohs(address.sin_port);
  }
  ~Listener() { close(descriptor_); }
  Listener(const Listener&) = delete;
  int descriptor() const { return descriptor_; }
  int port() const { return port_; }

 private:
  int descriptor_, port_ = 0;
};

/// The processes of one start.
class Processes {
 public:
  explicit Processes(const LaunchArguments& arguments)
      : system_(words_of(arguments.command), arguments.processes, {SIGINT, SIGTERM}) {
    const Listener listener;
    for (int rank = 0; rank < arguments.processes; ++rank) start(arguments, rank, listener);
  }
  ~Processes() {
    send(SIGKILL);
    // Not any process: whoever became this launcher by exec may have others, which do not end with it.
    for (const pid_t process : processes_) {
      if (process > 0) system_.await_end(process);
    }
  }
  Processes(const Processes&) = delete;

  /// Until all have ended. The exit code of the first that failed.
  int run() {
    while (running_ > 0) {
      system_.await({});
      while (const int number = system_.next_signal()) {
        // The terminal's own Ctrl-C goes to all processes in front of it.
        if (number != SIGCHLD && system_.sent_by_process()) send(number);
      }
      collect();
      hurry();
    }
    return code_;
  }

 private:
  void start(const LaunchArguments& arguments, int rank, const Listener& listener) {
    processes_.push_back(system_.start([&] {
      set_variable("RANK", rank);
      set_variable("LOCAL_RANK", rank);
      set_variable("WORLD_SIZE", arguments.processes);
      set_variable("LOCAL_WORLD_SIZE", arguments.processes);
      setenv("MASTER_ADDR", "127.0.0.1", 1);
      set_variable("MASTER_PORT", listener.port());
      // Rank 0 takes it over; where that ends, others are to be refused, not left waiting.
      if (rank == 0) fcntl(listener.descriptor(), F_SETFD, 0);
      set_variable("CAPSTAN_LISTENING_SOCKET", listener.descriptor());
      for (const char* name : {"TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RESTART_COUNT"}) unsetenv(name);
    }));
    ++running_;
  }

  void collect() {
    for (std::size_t rank = 0; rank < processes_.size(); ++rank) {
      const std::optional<int> status = processes_[rank] > 0 ? system_.change_of(processes_[rank]) : std::nullopt;
      if (!status || WIFSTOPPED(*status) || WIFCONTINUED(*status)) continue;
      processes_[rank] = 0;
      --running_;
      if (code_of(*status) == 0 || code_ != 0) continue;
      code_ = code_of(*status);
      if (code_ == static_cast<int>(ExitCode::kInterrupted)) {
        end_at_ = Clock::now() + kEndingToo;
        continue;
      }
      log::error("rank " + std::to_string(rank) + " " + how_it_ended(*status) +
                 (running_ > 0 ? "; the others are ended." : "."));
      end_at_ = Clock::now() + kNoticing;
    }
  }

  /// Ends those that are left after a failure: kindly, then not.
  void hurry() {
    if (!end_at_ || running_ == 0 || Clock::now() < *end_at_) return;
    send(asked_ ? SIGKILL : SIGTERM);
    asked_ = true;
    end_at_ = Clock::now() + kEnding;
  }

  void send(int number) {
    for (const pid_t process : processes_) {
      if (process > 0) system_.send(process, number);
    }
  }

  HostSystem system_;
  std::vector<pid_t> processes_;  // 0: has ended
  int running_ = 0;
  int code_ = 0;
  std::optional<Clock::time_point> end_at_;
  bool asked_ = false;
};

}  // namespace

int launch(const LaunchArguments& arguments) {
  if (arguments.status) {
    print(arguments.rdzv.empty()
              ? elastic_status()
              : elastic_status_at(arguments.rdzv, RendezvousSecret::of(arguments.rdzv, arguments.rdzv_secret_file)));
    return 0;
  }
  return arguments.elastic ? launch_elastic(arguments) : Processes(arguments).run();
}

}  // namespace capstan::cli
