#pragma once

#include <cstdint>
#include <string>

#include "core/checkpoint/state_reader.hpp"
#include "core/config/config.hpp"
#include "core/text/json.hpp"

namespace capstan {

/// The scale of a loss whose gradients are fp16: fixed, or raised while gradients stay finite and lowered when they
/// overflow.
///
/// The state machine of DeepSpeed's dynamic scaler: after an overflow at step L it grows at the (window + 1)-th clean
/// step, then every `window` clean steps; `hysteresis` overflows are tolerated before the scale halves.
class LossScaler {
 public:
  /// Scale 1 for ever unless the precision scales losses.
  explicit LossScaler(const PrecisionConfig& precision);

  double scale() const { return scale_; }
  bool dynamic() const { return dynamic_; }
  /// Once a step, skipped ones included, at its end: the scale that produced the step's gradients stays in force until
  /// then. Throws RuntimeFault on an overflow at the smallest scale, from which training cannot recover.
  void update(bool overflow);

  /// What a dynamic scale goes by.
  struct State {
    double scale = 1;
    std::int64_t step = 0;
    std::int64_t last_overflow = -1;  // the step; -1: none
    int hysteresis = 1;               // overflows to go until the scale halves
  };
  Json save() const;
  /// What save() gave. Throws RuntimeFault when a member of it is missing or impossible.
  static State read(const StateReader& state);
  /// Goes on from there; a fixed scale stays as it is.
  void restore(const State& state);

 private:
  bool dynamic_ = false;
  double scale_ = 1;
  double floor_, ceiling_;
  std::string section_;  // the configuration's section, for messages
  std::int64_t window_;
  int configured_hysteresis_;
  bool refill_each_step_;
  int hysteresis_;
  std::int64_t step_ = 0;
  std::int64_t last_overflow_ = -1;
};

}  // namespace capstan
