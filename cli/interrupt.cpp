#include "cli/interrupt.hpp"

#include <unistd.h>

#include <csignal>
#include <initializer_list>

namespace capstan::cli {
namespace {

volatile std::sig_atomic_t signals_seen = 0;

// Only what is safe in a signal handler: an assignment, signal(), write().
void on_signal(int) {
  signals_seen = 1;
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
  constexpr char kText[] = "\ncapstan: finishing this step; a second signal ends at once\n";
  [[maybe_unused]] const auto written = write(STDERR_FILENO, kText, sizeof kText - 1);
}

}  // namespace

Interrupt::Interrupt() {
  signals_seen = 0;
  for (const int number : {SIGINT, SIGTERM}) std::signal(number, on_signal);
}

Interrupt::~Interrupt() {
  for (const int number : {SIGINT, SIGTERM}) std::signal(number, SIG_DFL);
}

bool Interrupt::requested() { return signals_seen != 0; }

}  // namespace capstan::cli
