#pragma once

#include <vector>

namespace capstan::compression {

/// The range of one layer's inputs that static calibration quantises with: a running mean of the batches' smallest and
/// largest values, with momentum 0.95, that begins as the first batch's (DeepSpeed's compression library,
/// basic_layer.py, QuantAct).
class RunningRange {
 public:
  double low() const { return low_; }
  double high() const { return high_; }

  /// Takes the extremes of a micro-batch, and keeps them until the step is settled. Extremes that are not finite, or
  /// whose low is above the high, count as a use that leaves the range as it is.
  void observe(double low, double high);
  /// The extremes of the step's micro-batches so far, low and high in turn; low above high where they were not finite.
  const std::vector<double>& observed() const { return observed_; }
  /// Ends the step: the range becomes what the step's first range and these extremes, of all ranks, give.
  void settle(const std::vector<double>& extremes);
  /// The range as the last settle() left it, which a checkpoint keeps.
  double settled_low() const { return settled_low_; }
  double settled_high() const { return settled_high_; }
  /// Begins anew with a range that was saved.
  void set(double low, double high);

 private:
  void take(double low, double high);

  double low_ = 0, high_ = 0;
  double settled_low_ = 0, settled_high_ = 0;  // before this step
  std::vector<double> observed_;
};

}  // namespace capstan::compression
