#pragma once

#include <cmath>

/// Tells whether each norm is a jump, against the mean of those before it.
class TemplatePluginDetector {
 public:
  explicit TemplatePluginDetector(double factor) : factor_(factor) {}

  bool is_jump(double norm) {
    if (!std::isfinite(norm)) return false;
    const bool jump = mean_ > 0 && norm > factor_ * mean_;
    mean_ = mean_ > 0 ? 0.9 * mean_ + 0.1 * norm : norm;
    return jump;
  }

  double mean() const { return mean_; }
  void set_mean(double mean) { mean_ = mean; }

 private:
  double factor_;
  double mean_ = 0;
};
