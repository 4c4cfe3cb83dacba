#include "device/faults.hpp"

#include <execinfo.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <string>

#include "device/device.hpp"
#include "device/memory.hpp"

namespace capstan::emulated {
namespace {

struct sigaction g_before;

void hand_on(int signal, siginfo_t* info, void* context) {
  if ((g_before.sa_flags & SA_SIGINFO) != 0 && g_before.sa_sigaction != nullptr) {
    return g_before.sa_sigaction(signal, info, context);
  }
  if (g_before.sa_handler != SIG_DFL && g_before.sa_handler != SIG_IGN) return g_before.sa_handler(signal);
  ::signal(signal, SIG_DFL);
  raise(signal);
}

/// Runs in a process that is about to end. A second fault in the handler ends the process as the first one would have.
void on_fault(int signal, siginfo_t* info, void* context) {
  const char* kind = nullptr;
  std::string detail;
  if (device_of(info->si_addr) >= 0) {
    kind = "host code touched device memory";
    detail = describe(info->si_addr);
  } else if (is_pinned(info->si_addr)) {
    kind = "host code touched pinned memory before it waited for the copy";
  }
  if (kind != nullptr) {
    char text[512];
    const int length = std::snprintf(text, sizeof text, "\nemulated device: %s at %p%s%s\n", kind, info->si_addr,
                                     detail.empty() ? "" : ": ", detail.c_str());
    (void)!write(STDERR_FILENO, text, static_cast<std::size_t>(length));
    void* frames[40];
    backtrace_symbols_fd(frames, backtrace(frames, 40), STDERR_FILENO);
  }
  hand_on(signal, info, context);
}

}  // namespace

void name_faults() {
  struct sigaction action {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigaction(SIGSEGV, &action, &g_before);
}

}  // namespace capstan::emulated
