#include "device/faults.hpp"

#include <execinfo.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <string>

#include "device/kernels.hpp"
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

/// Lets a kernel have what it may touch. Any other fault is named, in a process that is about to end: a second one in
/// the handler ends the process as the first one would have.
void on_fault(int signal, siginfo_t* info, void* context) {
  if (device_of(info->si_addr) >= 0 && let_kernel_touch(info->si_addr)) return;
  std::string kind, detail;
  if (device_of(info->si_addr) >= 0) {
    const char* kernel = running_kernel();
    kind = kernel ? "the kernel launched at " + std::string(kernel) + " touched device memory"
                  : "host code touched device memory";
    detail = describe(info->si_addr);
  } else if (is_pinned(info->si_addr)) {
    kind = "host code touched pinned memory before it waited for the copy";
  }
  if (!kind.empty()) {
    char text[512];
    const int length = std::snprintf(text, sizeof text, "\nemulated device: %s at %p%s%s\n", kind.c_str(),
                                     info->si_addr, detail.empty() ? "" : ": ", detail.c_str());
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
