#include "core/elastic/launcher/system.hpp"

#include <poll.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <utility>

#include "core/elastic/launcher/launched_process.hpp"

namespace capstan {
namespace {

/// How often what gives no signal is looked at.
constexpr std::chrono::milliseconds kLookAgain{20};

}  // namespace

HostSystem::HostSystem(std::vector<std::string> words, int share, std::initializer_list<int> signals)
    : words_(std::move(words)), share_(share) {
  sigemptyset(&signals_);
  sigaddset(&signals_, SIGCHLD);
  for (const int number : signals) sigaddset(&signals_, number);
  sigprocmask(SIG_BLOCK, &signals_, &before_);
  signal_descriptor_ = signalfd(-1, &signals_, SFD_NONBLOCK | SFD_CLOEXEC);
}

HostSystem::~HostSystem() {
  if (signal_descriptor_ >= 0) close(signal_descriptor_);
  sigprocmask(SIG_SETMASK, &before_, nullptr);
}

pid_t HostSystem::start(const std::function<void()>& prepare) {
  return start_process(words_, before_, share_, prepare);
}

void HostSystem::send(pid_t process, int signal) { kill(process, signal); }

std::optional<int> HostSystem::change_of(pid_t process) {
  int status = 0;
  if (waitpid(process, &status, WNOHANG | WUNTRACED | WCONTINUED) != process) return std::nullopt;
  return status;
}

void HostSystem::await_end(pid_t process) { waitpid(process, nullptr, 0); }

void HostSystem::await(const std::vector<int>& descriptors) {
  std::vector<pollfd> all{{signal_descriptor_, POLLIN, 0}};
  for (const int one : descriptors) all.push_back({one, POLLIN, 0});
  poll(all.data(), all.size(), static_cast<int>(kLookAgain.count()));
}

int HostSystem::next_signal() {
  signalfd_siginfo facts{};
  if (read(signal_descriptor_, &facts, sizeof facts) != sizeof facts) return 0;
  sent_by_process_ = facts.ssi_code == SI_USER;
  return static_cast<int>(facts.ssi_signo);
}

}  // namespace capstan
