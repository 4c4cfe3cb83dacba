#pragma once

#include <signal.h>

#include <cerrno>
#include <ctime>

namespace capstan::offload {

/// While it lives, a write beyond RLIMIT_FSIZE fails with EFBIG in this thread, and sends no SIGXFSZ, which would end
/// the process.
class NoFileSizeSignal {
 public:
  NoFileSizeSignal() {
    sigemptyset(&signal_);
    sigaddset(&signal_, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &signal_, &before_);
  }
  ~NoFileSizeSignal() {
    if (sigismember(&before_, SIGXFSZ) == 1) return;
    const int error = errno;  // of the call that this guards
    const timespec at_once{};
    while (sigtimedwait(&signal_, nullptr, &at_once) == SIGXFSZ) {
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    errno = error;
  }
  NoFileSizeSignal(const NoFileSizeSignal&) = delete;

 private:
  sigset_t signal_, before_;
};

}  // namespace capstan::offload
