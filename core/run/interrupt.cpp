#include "core/run/interrupt.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include "core/errors.hpp"
#include "core/text/numbers.hpp"

namespace capstan {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::array<int, 2> kSignals = {SIGINT, SIGTERM};
/// By Interrupt::Kind.
constexpr const char* kVariables[] = {"CAPSTAN_INTERRUPT_SECONDS", "CAPSTAN_INTERRUPT_SAVE_SECONDS"};
constexpr const char* kNames[] = {"step", "save"};
constexpr milliseconds kShortestBounds[] = {std::chrono::seconds(10), std::chrono::minutes(30)};

constexpr int kInterrupted = static_cast<int>(ExitCode::kInterrupted);

volatile std::sig_atomic_t signals_seen = 0, parts_begun = 0, says_so = 0;
int wake_watcher = -1;  // an eventfd

void wake() {
  constexpr std::uint64_t kOne = 1;
  [[maybe_unused]] const auto written = write(wake_watcher, &kOne, sizeof kOne);
}

void say(const char* text) {
  if (!says_so) return;
  [[maybe_unused]] const auto written = write(STDERR_FILENO, text, std::strlen(text));
}

// Only what is safe in a signal handler: assignments, signal(), write(), _exit().
void on_signal(int) {
  const int before = errno;
  if (!parts_begun) {
    say("\ncapstan: interrupted before the first step\n");
    _exit(kInterrupted);
  }
  signals_seen = 1;
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
  say("\ncapstan: finishing this step; a second signal ends at once\n");
  wake();
  errno = before;
}

std::string seconds_text(milliseconds time) { return fixed(std::chrono::duration<double>(time).count(), 1) + " s"; }

}  // namespace

Interrupt::Interrupt(bool speaks) : given_{seconds_in(kVariables[0]), seconds_in(kVariables[1])} {
  signals_seen = 0;
  parts_begun = 0;
  says_so = speaks;
  wake_watcher = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_watcher < 0) throw RuntimeFault(std::string("eventfd: ") + std::strerror(errno) + ".");
  watcher_ = std::thread([this] { watch(); });
  for (std::size_t k = 0; k < kSignals.size(); ++k) {
    sigaction(kSignals[k], nullptr, &before_[k]);
    std::signal(kSignals[k], on_signal);
  }
}

Interrupt::~Interrupt() {
  for (std::size_t k = 0; k < kSignals.size(); ++k) sigaction(kSignals[k], &before_[k], nullptr);
  signals_seen = 0;
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  wake();
  watcher_.join();
  close(std::exchange(wake_watcher, -1));
}

void Interrupt::speaks(bool on) { says_so = on; }

bool Interrupt::requested() { return signals_seen != 0; }

Interrupt::Bound Interrupt::bound(Kind kind) const {
  const auto k = static_cast<std::size_t>(kind);
  if (given_[k]) return {*given_[k], seconds_text(*given_[k]) + " (" + kVariables[k] + ")"};
  if (2 * longest_[k] > kShortestBounds[k]) {
    return {2 * longest_[k],
            seconds_text(2 * longest_[k]) + ", twice the time of the longest " + kNames[k] + " so far"};
  }
  return {kShortestBounds[k], seconds_text(kShortestBounds[k])};
}

void Interrupt::set_deadline() {
  deadline_ = Clock::now() + bound(kind_).time;
  if (kind_ == Kind::kSave && !progress_) progress_.emplace();
}

void Interrupt::watch() {
  std::unique_lock lock(mutex_);
  while (!ending_) {
    int patience = -1;
    if (requested() && unfinished_) {
      if (!deadline_) set_deadline();
      if (Clock::now() >= *deadline_ && progress_ && progress_->got_on()) set_deadline();
      const auto left = std::chrono::ceil<milliseconds>(*deadline_ - Clock::now());
      if (left.count() <= 0) {
        // The lock stays: a part that ends now must not go on beside the end of the process.
        unfinished_(bound(kind_).text);
        _exit(kInterrupted);
      }
      patience = static_cast<int>(left.count());
    }
    lock.unlock();
    pollfd woken{wake_watcher, POLLIN, 0};
    poll(&woken, 1, patience);
    std::uint64_t count = 0;
    [[maybe_unused]] const auto drained = read(wake_watcher, &count, sizeof count);
    lock.lock();
  }
}

Interrupt::Part::Part(Interrupt& interrupt, Kind kind, Unfinished unfinished)
    : interrupt_(interrupt), kind_(kind), begun_(Clock::now()) {
  const std::lock_guard lock(interrupt_.mutex_);
  outermost_ = interrupt_.unfinished_ == nullptr;
  if (!outermost_) return;
  interrupt_.unfinished_ = std::move(unfinished);
  interrupt_.kind_ = kind;
  interrupt_.deadline_.reset();
  interrupt_.progress_.reset();
  parts_begun = 1;
  if (requested()) wake();
}

void Interrupt::Part::note_time() {
  auto& longest = interrupt_.longest_[static_cast<std::size_t>(kind_)];
  const auto now = Clock::now();
  longest = std::max(longest, std::chrono::ceil<milliseconds>(now - begun_));
  begun_ = now;
}

void Interrupt::Part::got_on() {
  if (!outermost_) return;
  const std::lock_guard lock(interrupt_.mutex_);
  note_time();
  interrupt_.deadline_.reset();
  if (requested()) wake();
}

Interrupt::Part::~Part() {
  if (!outermost_) return;
  const std::lock_guard lock(interrupt_.mutex_);
  note_time();
  interrupt_.unfinished_ = nullptr;
}

std::string interrupted_text(const InterruptedRun& run) {
  const std::string text = "interrupted after step " + grouped(run.step) + " of " + grouped(run.steps);
  if (run.save_dir.empty()) return text + ". Nothing was saved: --save is not given.";
  if (run.step < run.steps) return text + ". Continue with --resume " + run.save_dir;
  return text + ", the last one: nothing is left to train." +
         (run.evaluates
              ? " The evaluation at the end was left out: 'capstan eval --checkpoint " + run.save_dir + "' makes it up."
              : "");
}

}  // namespace capstan
