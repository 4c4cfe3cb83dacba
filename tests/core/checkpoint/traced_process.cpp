#include "tests/core/checkpoint/traced_process.hpp"

#include <signal.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

namespace capstan::test {
namespace {

/// A forked process that stops at each system call.
class Traced {
 public:
  explicit Traced(const std::function<void()>& action) : pid_(fork()) {
    if (pid_ == 0) {
      if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) _exit(kRefused);
      raise(SIGSTOP);
      try {
        action();
      } catch (...) {
        _exit(kThrew);
      }
      _exit(0);
    }
    waitpid(pid_, &status_, 0);
    if (WIFSTOPPED(status_)) {
      ptrace(PTRACE_SETOPTIONS, pid_, nullptr, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL);
    }
  }

  /// Goes on to the next stop at a system call. False when the process has ended.
  bool next() {
    int signal = 0;
    while (WIFSTOPPED(status_)) {
      ptrace(PTRACE_SYSCALL, pid_, nullptr, signal);
      waitpid(pid_, &status_, 0);
      if (WIFSTOPPED(status_) && WSTOPSIG(status_) == (SIGTRAP | 0x80)) return true;
      signal = WIFSTOPPED(status_) ? WSTOPSIG(status_) : 0;
    }
    return false;
  }

  void kill() {
    ::kill(pid_, SIGKILL);
    waitpid(pid_, &status_, 0);
  }

  TracedEnd end() const {
    if (WIFEXITED(status_) && WEXITSTATUS(status_) == 0) return TracedEnd::kFinished;
    return WIFEXITED(status_) && WEXITSTATUS(status_) == kRefused ? TracedEnd::kNotTraceable : TracedEnd::kFailed;
  }

  std::string text_at(std::uint64_t address) const {
    char text[4096] = {};
    iovec here{text, sizeof text - 1}, there{reinterpret_cast<void*>(address), sizeof text - 1};
    // Up to the end of the mapped pages is enough; the text ends before.
    for (; there.iov_len > 0 && process_vm_readv(pid_, &here, 1, &there, 1, 0) < 0; --there.iov_len) {
    }
    return text;
  }

  std::string file_of(std::uint64_t descriptor) const {
    return std::filesystem::read_symlink("/proc/" + std::to_string(pid_) + "/fd/" + std::to_string(descriptor));
  }

  pid_t pid() const { return pid_; }

 private:
  static constexpr int kRefused = 77, kThrew = 78;
  pid_t pid_;
  int status_ = 0;
};

}  // namespace

TracedEnd kill_at_stop(int stop, const std::function<void()>& action, const std::function<void()>& before_kill) {
  Traced process(action);
  for (int i = 0; process.next(); ++i) {
    if (i == stop) {
      before_kill();
      process.kill();
      return TracedEnd::kKilled;
    }
  }
  return process.end();
}

std::vector<std::string> durability_calls(const std::function<void()>& action) {
  std::vector<std::string> calls;
  Traced process(action);
  while (process.next()) {
    __ptrace_syscall_info info{};
    ptrace(PTRACE_GET_SYSCALL_INFO, process.pid(), sizeof info, &info);
    if (info.op != PTRACE_SYSCALL_INFO_ENTRY) continue;
    const auto* arguments = info.entry.args;
    switch (info.entry.nr) {
      case SYS_fsync:
      case SYS_fdatasync:
        calls.push_back("fsync " + process.file_of(arguments[0]));
        break;
#ifdef SYS_rename
      case SYS_rename:
        calls.push_back("rename " + process.text_at(arguments[0]) + " " + process.text_at(arguments[1]));
        break;
#endif
#ifdef SYS_renameat
      case SYS_renameat:
#endif
      case SYS_renameat2:
        calls.push_back("rename " + process.text_at(arguments[1]) + " " + process.text_at(arguments[3]));
        break;
      default:
        break;
    }
  }
  return process.end() == TracedEnd::kFinished ? calls : std::vector<std::string>{};
}

}  // namespace capstan::test
