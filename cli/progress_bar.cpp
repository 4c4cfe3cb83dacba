#include "cli/progress_bar.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>

#include "cli/numbers.hpp"
#include "core/log.hpp"

namespace capstan::cli {
namespace {

constexpr auto kBetweenDrawings = std::chrono::milliseconds(100);
constexpr int kLongestBar = 30, kShortestBar = 8;

// Whether the last line of the terminal is a bar. Log lines of any thread look here.
std::atomic<bool> visible{false};

void write_error(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stderr); }

std::string bar(std::int64_t step, std::int64_t steps, int length) {
  const auto done = static_cast<int>(steps > 0 ? std::min(step, steps) * length / steps : 0);
  std::string text(static_cast<std::size_t>(length), ' ');
  std::fill_n(text.begin(), done, '=');
  if (done < length) text[static_cast<std::size_t>(done)] = '>';
  return "[" + text + "]";
}

}  // namespace

void Pace::step_took(double seconds) {
  // The first step allocates memory and loads kernels, on a GPU for a second where others take 25 ms: it counts until
  // there is another. The average leans on what is new until there are ten.
  ++steps_;
  const double weight = std::max(0.1, 1.0 / static_cast<double>(std::max<std::int64_t>(steps_ - 1, 1)));
  seconds_per_step_ += weight * (seconds - seconds_per_step_);
}

double Pace::samples_per_second() const {
  return seconds_per_step_ > 0 ? static_cast<double>(samples_) / seconds_per_step_ : 0;
}

std::string bar_text(const StepFacts& facts, int width) {
  const std::string head = "step " + std::to_string(facts.step) + "/" + std::to_string(facts.steps) + " ";
  const std::string tail = "loss " + fixed(facts.loss, 4) + "  lr " + short_number(facts.lr) + "  " +
                           fixed(facts.samples_per_second, 1) + " samples/s  " +
                           grouped(static_cast<std::int64_t>(facts.tokens_per_second)) + " tokens/s  ETA " +
                           duration_text(facts.seconds_left);
  // The last column stays free: a full line would wrap on some terminals.
  const int room = width - 1 - static_cast<int>(head.size() + tail.size()) - 3;
  std::string text = head;
  if (room >= kShortestBar) text += bar(facts.step, facts.steps, std::min(room, kLongestBar)) + " ";
  text += tail;
  return text.substr(0, static_cast<std::size_t>(std::max(width - 1, 0)));
}

std::string plain_text(const StepFacts& facts) {
  return "loss=" + fixed(facts.loss, 4) + ", samples/s=" + fixed(facts.samples_per_second, 1) +
         ", tokens/s=" + fixed(facts.tokens_per_second, 0) + ", eta=" + duration_text(facts.seconds_left);
}

std::optional<std::string> Forecast::after_step(const StepFacts& facts, double seconds_since_begin) {
  if (decided_ || (++steps_ < 3 && seconds_since_begin < kLongEnough)) return std::nullopt;
  decided_ = true;
  if (facts.seconds_left < kShortRun) return std::nullopt;
  return counted(facts.steps - facts.step, "step") + " to go, about " + duration_text(facts.seconds_left) +
         " at the pace of the first";
}

ProgressBar::ProgressBar(bool wanted) : terminal_(STDERR_FILENO), on_(wanted && terminal_.interactive()) {
  if (on_) log::set_before_line(&ProgressBar::clear);
}

ProgressBar::~ProgressBar() {
  if (!on_) return;
  clear();
  log::set_before_line(nullptr);
}

void ProgressBar::show(const StepFacts& facts) {
  const auto now = std::chrono::steady_clock::now();
  if (!on_ || (now - drawn_ < kBetweenDrawings && facts.step < facts.steps)) return;
  drawn_ = now;
  write_error("\r\x1b[K" + bar_text(facts, terminal_.width()));
  std::fflush(stderr);
  visible = true;
}

void ProgressBar::clear() {
  if (!visible.exchange(false)) return;
  write_error("\r\x1b[K");
  std::fflush(stderr);
}

}  // namespace capstan::cli
