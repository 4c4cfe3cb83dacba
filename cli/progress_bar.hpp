#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "cli/terminal.hpp"

namespace capstan::cli {

/// How fast steps go: a moving average that forgets, so that a slow start does not spoil the estimate for long.
class Pace {
 public:
  Pace(std::int64_t samples_per_step, std::int64_t tokens_per_sample)
      : samples_(samples_per_step), tokens_(tokens_per_sample) {}

  void step_took(double seconds);
  double samples_per_second() const;  // 0 before the first step
  double tokens_per_second() const { return samples_per_second() * static_cast<double>(tokens_); }
  double seconds_for(std::int64_t steps) const { return seconds_per_step_ * static_cast<double>(steps); }

 private:
  std::int64_t samples_, tokens_;
  std::int64_t steps_ = 0;
  double seconds_per_step_ = 0;
};

/// What the bar and the plain line show of a step.
struct StepFacts {
  std::int64_t step = 0, steps = 0;
  double loss = 0, lr = 0;
  double samples_per_second = 0, tokens_per_second = 0, seconds_left = 0;
};

/// "step 120/200 [=====>   ] loss 2.4531  lr 0.0003  112.0 samples/s  14,336 tokens/s  ETA 0:00:42", in `width`
/// columns: a narrow terminal loses the bar first, then the end of the line.
std::string bar_text(const StepFacts& facts, int width);

/// "loss=2.4531, samples/s=112.0, tokens/s=14336, eta=0:00:42": beside the line of steps_per_print.
std::string plain_text(const StepFacts& facts);

/// What a run says once, in its first seconds, of how long it will take.
class Forecast {
 public:
  /// After each step, with the seconds since the run began: the sentence, or nothing. It comes after the third step,
  /// the first of which allocate memory and take longer, or after the first that ends later than kLongEnough; a run
  /// that then has less than kShortRun to go needs none.
  std::optional<std::string> after_step(const StepFacts& facts, double seconds_since_begin);

 private:
  static constexpr double kLongEnough = 4, kShortRun = 20;  // seconds
  int steps_ = 0;
  bool decided_ = false;
};

/// One line at the bottom of a terminal that is drawn over itself. Does nothing where standard error is no terminal.
/// One at a time; log lines clear it.
class ProgressBar {
 public:
  explicit ProgressBar(bool wanted);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;

  /// Redraws, a few times a second at most.
  void show(const StepFacts& facts);
  /// Takes the line away, before something else is printed.
  static void clear();

 private:
  Terminal terminal_;
  bool on_;
  std::chrono::steady_clock::time_point drawn_{};
};

}  // namespace capstan::cli
