#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

#include "capstan/sdk/scheduler.hpp"
#include "plugins/schedulers/common/text.hpp"

namespace capstan::schedulers {

/// The rising part that WarmupLR, WarmupDecayLR and WarmupCosineLR share.
class Warmup {
 public:
  explicit Warmup(const sdk::Params& params)
      : steps_(std::max<std::int64_t>(2, params.integer("warmup_num_steps"))),
        linear_(params.text("warmup_type") == "linear"),
        inverse_log_(1.0 / std::log(static_cast<double>(steps_))) {}

  std::int64_t steps() const { return steps_; }
  bool rises(std::int64_t k) const { return k < steps_; }
  /// From 0 at k = 0. Log reaches 1 at k = steps() - 1, linear at k = steps().
  double progress(std::int64_t k) const {
    if (linear_) return static_cast<double>(k) / static_cast<double>(steps_);
    return inverse_log_ * std::log(static_cast<double>(k + 1));
  }

 private:
  std::int64_t steps_;
  bool linear_;
  double inverse_log_;
};

inline std::string min_exceeds_max(double min, double max) {
  return "scheduler.params.warmup_min_lr: " + number_text(min) + " exceeds warmup_max_lr, which is " +
         number_text(max) + ", so the rate falls during the warm-up.";
}

}  // namespace capstan::schedulers
