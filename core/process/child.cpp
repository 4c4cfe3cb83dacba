#include "core/process/child.hpp"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/errors.hpp"

namespace capstan {
namespace {

/// Tells a child that its parent is gone. The parent's number would not: a child in a PID namespace of its own sees 0
/// in place of it.
class Parent {
 public:
  Parent() : number_(getpid()), watched_(static_cast<int>(syscall(SYS_pidfd_open, number_, 0))) {}
  ~Parent() {
    if (watched_ >= 0) close(watched_);
  }
  Parent(const Parent&) = delete;

  bool is_gone() const {
    if (watched_ < 0) return getppid() != number_ && getppid() != 0;  // Linux before 5.3, or not allowed here
    pollfd one{watched_, POLLIN, 0};
    return poll(&one, 1, 0) > 0;
  }

 private:
  pid_t number_;
  int watched_;
};

/// Forks. In the child: arranges for the signal that it gets when its parent ends.
pid_t fork_below(const std::string& caller, int signal_of_parent, const sigset_t* mask) {
  const Parent parent;
  const pid_t process = fork();
  if (process < 0) throw RuntimeFault(caller + "no process: " + std::strerror(errno) + ".");
  if (process > 0) return process;
  if (mask != nullptr) sigprocmask(SIG_SETMASK, mask, nullptr);
  prctl(PR_SET_PDEATHSIG, signal_of_parent);
  if (parent.is_gone()) _exit(1);
  return 0;
}

}  // namespace

pid_t start_copy(const std::string& caller, int signal_of_parent, int kept, const std::function<int()>& work) {
  const pid_t process = fork_below(caller, signal_of_parent, nullptr);
  if (process > 0) return process;
  const auto first = static_cast<unsigned>(STDERR_FILENO) + 1, own = static_cast<unsigned>(kept);
  if (own > first) close_range(first, own - 1, 0);
  close_range(std::max(own + 1, first), ~0U, 0);
  _exit(work());
}

pid_t start_child(const ChildCommand& command) {
  const pid_t process = fork_below(command.caller, command.signal_of_parent, &command.mask);
  if (process > 0) return process;
  if (command.prepare) command.prepare();
  std::vector<char*> argv;
  for (const std::string& word : command.words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  execv(argv[0], argv.data());
  // The log's lock may be held by a thread that the child does not have.
  const std::string text = "capstan: error: " + command.caller + "'" + command.words[0] +
                           "' cannot be started: " + std::strerror(errno) + ".\n";
  (void)!::write(STDERR_FILENO, text.data(), text.size());
  _exit(127);
}

int code_of(int status) { return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status); }

std::string how_it_ended(int status) {
  if (WIFSIGNALED(status)) {
    const char* name = sigabbrev_np(WTERMSIG(status));
    return "was killed by " + (name ? std::string("SIG") + name : "signal " + std::to_string(WTERMSIG(status)));
  }
  return "ended with exit code " + std::to_string(WEXITSTATUS(status));
}

}  // namespace capstan
