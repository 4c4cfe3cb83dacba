#include "core/elastic/launcher/launched_process.hpp"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "core/errors.hpp"
#include "core/log.hpp"

namespace capstan {
namespace {

/// This process, watched by those that it forks. Its number would not tell: in a PID namespace of their own they see
/// the number 0 in place of it.
class Launcher {
 public:
  Launcher() : number_(getpid()), watched_(static_cast<int>(syscall(SYS_pidfd_open, number_, 0))) {}
  ~Launcher() {
    if (watched_ >= 0) close(watched_);
  }
  Launcher(const Launcher&) = delete;

  bool is_gone() const {
    if (watched_ < 0) return getppid() != number_ && getppid() != 0;  // Linux before 5.3, or not allowed here
    pollfd one{watched_, POLLIN, 0};
    return poll(&one, 1, 0) > 0;
  }

 private:
  pid_t number_;
  int watched_;
};

}  // namespace

int code_of(int status) { return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status); }

std::string how_it_ended(int status) {
  if (WIFSIGNALED(status)) {
    const char* name = sigabbrev_np(WTERMSIG(status));
    return "was killed by " + (name ? std::string("SIG") + name : "signal " + std::to_string(WTERMSIG(status)));
  }
  return "ended with exit code " + std::to_string(WEXITSTATUS(status));
}

void set_variable(const char* name, std::int64_t value) { setenv(name, std::to_string(value).c_str(), 1); }

pid_t start_process(const std::vector<std::string>& words, const sigset_t& mask, int processes,
                    const std::function<void()>& prepare) {
  const Launcher launcher;
  const pid_t process = fork();
  if (process < 0) throw RuntimeFault(std::string("launch: no process: ") + std::strerror(errno) + ".");
  if (process > 0) return process;
  sigprocmask(SIG_SETMASK, &mask, nullptr);
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (launcher.is_gone()) _exit(1);
  unsetenv("CAPSTAN_RDZV_SECRET");  // that of launchers alone
  prepare();
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  setenv("OMP_NUM_THREADS", std::to_string(std::max(1, cores / processes)).c_str(), 0);
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  execv(argv[0], argv.data());
  log::error("launch: '" + words[0] + "' cannot be started: " + std::strerror(errno) + ".");
  _exit(127);
}

}  // namespace capstan
