#include "core/tuning/metric.hpp"

#include <array>
#include <cstdio>

namespace capstan {
namespace {

std::string with_digits(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

std::string rate_text(double operations) {
  constexpr std::array<const char*, 6> kUnits = {"", "k", "M", "G", "T", "P"};
  std::size_t unit = 0;
  for (; operations >= 1000 && unit + 1 < kUnits.size(); ++unit) operations /= 1000;
  return with_digits(operations, 2) + " " + kUnits[unit] + "FLOPS a device";
}

double samples_of_a_device(const TuningPoint& point) {
  return static_cast<double>(point.micro_batch * point.accumulation);
}

}  // namespace

double TuningMetric::seconds(const TuningPoint& point, const TrialOutcome& outcome) {
  if (!counts_operations()) return outcome.latency;
  const double samples = samples_of_a_device(point);
  if (operations_ == 0) operations_ = outcome.flops * outcome.latency / samples;
  return operations_ * samples / outcome.flops;
}

double TuningMetric::value(const TuningPoint& point, double seconds) const {
  if (is_least()) return seconds * 1e6;
  return (counts_operations() ? operations_ * samples_of_a_device(point) : static_cast<double>(point.train_batch)) /
         seconds;
}

std::string TuningMetric::text(const TuningPoint& point, double seconds) const {
  if (is_least()) return with_digits(seconds * 1e3, 1) + " ms a step";
  const double rate = value(point, seconds);
  return counts_operations() ? rate_text(rate) : with_digits(rate, rate < 100 ? 2 : 1) + " samples/s";
}

}  // namespace capstan
