#include "core/run/pace.hpp"

#include <algorithm>

#include "core/text/numbers.hpp"

namespace capstan {

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

std::string plain_text(const StepProgress& facts) {
  const std::string tokens =
      facts.tokens_per_second > 0 ? ", tokens/s=" + fixed(facts.tokens_per_second, 0) : std::string();
  return "loss=" + fixed(facts.loss, 4) + ", samples/s=" + fixed(facts.samples_per_second, 1) + tokens +
         ", eta=" + duration_text(facts.seconds_left);
}

std::optional<std::string> Forecast::after_step(const StepProgress& facts, double seconds_since_begin) {
  if (decided_ || (++steps_ < 3 && seconds_since_begin < kLongEnough)) return std::nullopt;
  decided_ = true;
  if (facts.seconds_left < kShortRun) return std::nullopt;
  return counted(facts.steps - facts.step, "step") + " to go, about " + duration_text(facts.seconds_left) +
         " at the pace of the first";
}

}  // namespace capstan
