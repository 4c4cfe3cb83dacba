#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace capstan {

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

/// A step of a run, for people who watch it.
struct StepProgress {
  std::int64_t step = 0, steps = 0;
  double loss = 0, lr = 0;
  double samples_per_second = 0, tokens_per_second = 0, seconds_left = 0;
};

/// "loss=2.4531, samples/s=112.0, tokens/s=14336, eta=0:00:42": beside the line of steps_per_print. Without tokens
/// where samples have no length.
std::string plain_text(const StepProgress& facts);

/// The line that a run prints once, in its first seconds: how long the run will take.
class Forecast {
 public:
  /// After each step, with the seconds since the run began: the sentence, or nothing. It comes after the third step,
  /// the first of which allocate memory and take longer, or after the first that ends later than kLongEnough; a run
  /// that then has less than kShortRun to go needs none.
  std::optional<std::string> after_step(const StepProgress& facts, double seconds_since_begin);

 private:
  static constexpr double kLongEnough = 4, kShortRun = 20;  // seconds
  int steps_ = 0;
  bool decided_ = false;
};

}  // namespace capstan
