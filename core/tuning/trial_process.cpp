#include "core/tuning/trial_process.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>

#include "core/errors.hpp"
#include "core/process/child.hpp"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

/// How often the keeper looks, how long a trial that has measured may take to end by itself, how long one that is asked
/// to end, and how long killed processes may take to be gone.
constexpr milliseconds kLook{10}, kGoodbye{300}, kKindly{1000}, kGone{10'000};
/// How often it looks which processes there are.
constexpr milliseconds kSearch{300};
/// The part of a log that is kept of one that grew beyond its bound.
constexpr off_t kKeptOutput = 1 << 20;
/// Ends a keeper whose parent is gone or wants the trial to end.
constexpr int kEnd = SIGUSR1;

struct ProcessFacts {
  pid_t parent = 0;
  std::int64_t peak = 0;
};

/// "Name:   123 kB" of a status file, in bytes.
std::int64_t status_number(const std::string& text, const char* name) {
  const auto at = text.find(name);
  return at == std::string::npos ? 0 : std::strtoll(text.c_str() + at + std::strlen(name), nullptr, 10);
}

ProcessFacts facts_of(pid_t process) {
  // A process may end between the opening of its file and the reading, which a stream's iterator would throw for.
  std::string text(8192, '\0');
  const int file = open(("/proc/" + std::to_string(process) + "/status").c_str(), O_RDONLY | O_CLOEXEC);
  const ssize_t length = file < 0 ? 0 : read(file, text.data(), text.size());
  if (file >= 0) close(file);
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(length, 0)));
  return {static_cast<pid_t>(status_number(text, "\nPPid:")), status_number(text, "\nVmHWM:") * 1024};
}

/// All processes of this machine that can be looked at.
std::map<pid_t, ProcessFacts> processes() {
  std::map<pid_t, ProcessFacts> found;
  std::error_code error;
  for (fs::directory_iterator at("/proc", error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const auto process = static_cast<pid_t>(std::stol(name));
    const ProcessFacts facts = facts_of(process);
    if (facts.parent > 0) found[process] = facts;
  }
  return found;
}

/// Those of them that descend from `ancestor`.
std::map<pid_t, ProcessFacts> descendants(pid_t ancestor) {
  const std::map<pid_t, ProcessFacts> all = processes();
  std::map<pid_t, ProcessFacts> found;
  for (const auto& [process, facts] : all) {
    for (pid_t above = facts.parent; above > 1;) {
      if (above == ancestor) {
        found.emplace(process, facts);
        break;
      }
      const auto next = all.find(above);
      above = next == all.end() ? 0 : next->second.parent;
    }
  }
  return found;
}

std::int64_t size_of(const fs::path& file) {
  struct stat facts {};
  return ::stat(file.c_str(), &facts) == 0 ? facts.st_size : 0;
}

bool is_there(const fs::path& file) { return !file.empty() && ::access(file.c_str(), F_OK) == 0; }

/// The process between this one and the trial: it waits for both, and outlives neither.
class Keeper {
 public:
  explicit Keeper(const TrialCommand& command) : command_(command) {}

  [[noreturn]] void run(int report, pid_t parent) {
    sigset_t signals;
    sigemptyset(&signals);
    for (const int number : {SIGCHLD, kEnd, SIGINT, SIGTERM, SIGHUP}) sigaddset(&signals, number);
    sigset_t before;
    sigprocmask(SIG_BLOCK, &signals, &before);
    prctl(PR_SET_PDEATHSIG, kEnd);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    if (getppid() != parent) _exit(0);
    begun_ = Clock::now();
    start(before);
    watch(signals);
    end_all(signals);
    result_.seconds = std::chrono::duration<double>(Clock::now() - begun_).count();
    (void)!::write(report, &result_, sizeof result_);
    _exit(0);
  }

 private:
  void start(const sigset_t& mask) {
    const auto prepare = [this] {
      setpgid(0, 0);
      redirect(command_.out, STDOUT_FILENO);
      redirect(command_.err, STDERR_FILENO);
      const int nothing = open("/dev/null", O_RDONLY);
      if (nothing >= 0) dup2(nothing, STDIN_FILENO);
      bound(RLIMIT_CORE, 0);
      if (command_.process_bytes > 0) bound(RLIMIT_DATA, 2 * static_cast<rlim_t>(command_.process_bytes) + (1u << 30));
    };
    try {
      trial_ = start_child(
          {.words = command_.words, .mask = mask, .caller = "", .signal_of_parent = SIGKILL, .prepare = prepare});
      setpgid(trial_, trial_);
    } catch (const RuntimeFault&) {
      result_.exit_code = 127;
    }
  }

  static void redirect(const fs::path& file, int descriptor) {
    const int opened = open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (opened >= 0) dup2(opened, descriptor);
  }

  /// Where memory grows faster than the keeper looks, the kernel's own bound ends the trial.
  static void bound(int resource, rlim_t most) {
    rlimit limit{};
    if (getrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0) return;
    limit.rlim_cur = std::min(limit.rlim_max, most);
    setrlimit(static_cast<__rlimit_resource>(resource), &limit);
  }

  void watch(const sigset_t& signals) {
    while (trial_ > 0) {
      const timespec patience{0, std::chrono::nanoseconds(kLook).count()};
      const int number = sigtimedwait(&signals, nullptr, &patience);
      if (number == kEnd) {
        result_.end = TrialEnd::kInterrupted;
        return;
      }
      look_at_memory();
      if (reap()) return;
      if (is_there(command_.measured)) {
        result_.end = TrialEnd::kMeasured;
        return;
      }
      if (const auto end = exceeded()) {
        result_.end = *end;
        return;
      }
    }
  }

  /// True once the first process of the trial has ended.
  bool reap() {
    int status = 0;
    for (pid_t ended = 0; (ended = waitpid(-1, &status, WNOHANG)) > 0;) {
      if (ended != trial_) continue;  // one of its own that it had left behind
      trial_ended_ = true;
      if (WIFSIGNALED(status)) result_.signal = WTERMSIG(status);
      if (WIFEXITED(status)) result_.exit_code = WEXITSTATUS(status);
    }
    if (trial_ended_ && is_there(command_.measured)) result_.end = TrialEnd::kMeasured;
    return trial_ended_;
  }

  void look_at_memory() {
    // Looking at all processes of a machine takes milliseconds, which the trial would miss.
    const auto now = Clock::now();
    if (now >= next_search_) {
      next_search_ = now + kSearch;
      family_.clear();
      for (const auto& [process, facts] : descendants(getpid())) family_.push_back(process);
    }
    if (now < next_look_) return;
    next_look_ = now + 3 * kLook;
    for (const pid_t process : family_) {
      result_.peak_bytes = std::max(result_.peak_bytes, facts_of(process).peak);
    }
  }

  std::optional<TrialEnd> exceeded() const {
    if (Clock::now() - begun_ > command_.time_out) return TrialEnd::kTimedOut;
    if (command_.process_bytes > 0 && result_.peak_bytes > command_.process_bytes) return TrialEnd::kOutOfMemory;
    if (std::max(size_of(command_.out), size_of(command_.err)) > command_.output_bytes) return TrialEnd::kTooMuchOutput;
    struct statvfs disk {};
    if (statvfs(command_.out.parent_path().c_str(), &disk) == 0 &&
        static_cast<std::int64_t>(disk.f_bavail) * static_cast<std::int64_t>(disk.f_frsize) < command_.spare_disk_bytes)
      return TrialEnd::kDiskFull;
    return std::nullopt;
  }

  /// Waits until the trial's first process has ended, for `patience` at most.
  void wait(const sigset_t& signals, milliseconds patience) {
    const auto until = Clock::now() + patience;
    while (trial_ > 0 && !trial_ended_ && Clock::now() < until) {
      const timespec look{0, std::chrono::nanoseconds(kLook).count()};
      sigtimedwait(&signals, nullptr, &look);
      const TrialEnd end = result_.end;
      reap();
      result_.end = end;
    }
  }

  void end_all(const sigset_t& signals) {
    if (result_.end == TrialEnd::kMeasured) wait(signals, kGoodbye);
    if (trial_ > 0 && !trial_ended_) {
      kill(-trial_, SIGTERM);
      wait(signals, kKindly);
    }
    if (trial_ > 0) kill(-trial_, SIGKILL);
    if (!end_descendants()) result_.end = TrialEnd::kStuck;
    for (const fs::path& log : {command_.out, command_.err}) {
      if (size_of(log) > command_.output_bytes) (void)!::truncate(log.c_str(), kKeptOutput);
    }
  }

  /// Kills what is left, and what that leaves, until nothing is.
  static bool end_descendants() {
    const auto until = Clock::now() + kGone;
    for (;;) {
      for (const auto& [process, facts] : descendants(getpid())) kill(process, SIGKILL);
      int status = 0;
      pid_t ended = 0;
      while ((ended = waitpid(-1, &status, WNOHANG)) > 0) {
      }
      if (ended < 0 && errno == ECHILD) return true;
      if (Clock::now() > until) return false;
      ::poll(nullptr, 0, 2);
    }
  }

  const TrialCommand& command_;
  TrialResult result_;
  pid_t trial_ = -1;
  bool trial_ended_ = false;
  std::vector<pid_t> family_;  // the processes of the trial, as they were found last
  Clock::time_point begun_, next_look_, next_search_;
};

}  // namespace

TrialResult run_trial(const TrialCommand& command, const std::function<bool()>& stop) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0)
    throw RuntimeFault(std::string("a trial needs a pipe: ") + std::strerror(errno) + ".");
  const pid_t parent = getpid();
  const pid_t keeper = fork();
  if (keeper < 0) {
    const int reason = errno;
    close(ends[0]);
    close(ends[1]);
    throw RuntimeFault(std::string("a trial needs a process: ") + std::strerror(reason) + ".");
  }
  if (keeper == 0) {
    close(ends[0]);
    Keeper(command).run(ends[1], parent);
  }
  close(ends[1]);
  TrialResult result;
  result.end = TrialEnd::kStuck;
  bool asked = false;
  for (;;) {
    pollfd ready{ends[0], POLLIN, 0};
    const int found = ::poll(&ready, 1, 20);
    if (found > 0) {
      (void)!::read(ends[0], &result, sizeof result);
      break;
    }
    if (!asked && stop && stop()) {
      asked = true;
      kill(keeper, kEnd);
    }
  }
  close(ends[0]);
  while (waitpid(keeper, nullptr, 0) < 0 && errno == EINTR) {
  }
  return result;
}

}  // namespace capstan
