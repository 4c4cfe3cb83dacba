#include "cli/progress_bar.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>

#include "core/log.hpp"
#include "core/text/numbers.hpp"

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

std::string bar_text(const StepProgress& facts, int width) {
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

ProgressBar::ProgressBar(bool wanted) : terminal_(STDERR_FILENO), on_(wanted && terminal_.interactive()) {
  if (on_) log::set_before_line(&ProgressBar::clear);
}

ProgressBar::~ProgressBar() {
  if (!on_) return;
  clear();
  log::set_before_line(nullptr);
}

void ProgressBar::show(const StepProgress& facts) {
  if (on_ && (is_due() || facts.step >= facts.steps)) draw(bar_text(facts, terminal_.width()));
}

void ProgressBar::show(const std::string& line) {
  if (on_ && is_due()) draw(line.substr(0, static_cast<std::size_t>(std::max(terminal_.width() - 1, 0))));
}

bool ProgressBar::is_due() const { return on_ && std::chrono::steady_clock::now() - drawn_ >= kBetweenDrawings; }

void ProgressBar::draw(const std::string& line) {
  drawn_ = std::chrono::steady_clock::now();
  write_error("\r\x1b[K" + line);
  std::fflush(stderr);
  visible = true;
}

void ProgressBar::clear() {
  if (!visible.exchange(false)) return;
  write_error("\r\x1b[K");
  std::fflush(stderr);
}

}  // namespace capstan::cli
