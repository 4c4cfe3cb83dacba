#pragma once

#include <string>
#include <utility>

#include "core/tuning/space.hpp"
#include "core/tuning/trial_folder.hpp"

namespace capstan {

/// What ranks points: autotuning.metric.
class TuningMetric {
 public:
  /// `name`: "throughput", "latency" or "FLOPS".
  explicit TuningMetric(std::string name) : name_(std::move(name)) {}

  const std::string& name() const { return name_; }
  bool is_least() const { return name_ == "latency"; }  // the best value is the least
  bool counts_operations() const { return name_ == "FLOPS"; }

  /// The seconds a step by which a search compares the trial. Under FLOPS those in which the device would have done the
  /// operations of this point at the rate of the trial: every sample is taken to need as many as one of the first
  /// trial, so that a lower time is a higher rate.
  double seconds(const TuningPoint& point, const TrialOutcome& outcome);
  /// What the seconds of a step are divided by to compare points: its samples, or 1 for the latency.
  double samples(const TuningPoint& point) const { return is_least() ? 1 : static_cast<double>(point.train_batch); }

  /// Of a point by seconds(): samples a second, microseconds a step, or operations a second of a device.
  double value(const TuningPoint& point, double seconds) const;
  /// "123.4 samples/s", "81.0 ms a step", "1.25 TFLOPS a device"
  std::string text(const TuningPoint& point, double seconds) const;

 private:
  std::string name_;
  double operations_ = 0;  // of a sample; 0: no trial has measured
};

}  // namespace capstan
