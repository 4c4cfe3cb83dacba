#pragma once

#include <filesystem>
#include <string>

namespace capstan::cli {

/// How far a run may be from the one that it is compared with. [any thread]
class VerifyBound {
 public:
  /// Every bit of it is equal.
  static VerifyBound equal() { return {}; }
  /// `reason`: why bits may differ, "sums of 2 ranks". `epsilon`: the distance from 1 to the next number of the type
  /// that forward computes in.
  static VerifyBound within(std::string reason, double epsilon);

  bool is_equal() const { return reason_.empty(); }
  const std::string& reason() const { return reason_; }
  /// Relative bounds: of a loss; of the gradients of the first step, whose weights are equal; of the gradients of later
  /// steps and of the way that weights have come.
  double loss() const { return loss_; }
  double first_gradients() const { return first_; }
  double later() const { return later_; }

 private:
  std::string reason_;
  double loss_ = 0, first_ = 0, later_ = 0;
};

/// How far losses, gradients or weights of two runs are apart. `size` is 0 where all bits are equal, else the relative
/// difference.
struct VerifyDifference {
  double size = 0;
  bool too_large = false;
  std::string text() const;  // "equal", "2.1e-07", "DIFFERS"
};

struct VerifyComparison {
  VerifyDifference loss, gradients, weights;
  std::string found;       // the first thing that differs too much; empty: nothing does
  bool explained = false;  // `found` names a cause
};

/// Numbers that a wrong loss or gradient may be off by, with what each would tell.
struct VerifyFactors {
  std::int64_t accumulation = 1, processes = 1;
  double rows = 1;  // of a micro-batch, over those of the other run's
};

/// Compares two records (RunRecord) over the steps that both have, in the order of forward and backward: samples,
/// losses, gradients from the last parameter to the first, weights. Throws RuntimeFault for a record that is not whole.
VerifyComparison compare_records(const std::filesystem::path& reference, const std::filesystem::path& run,
                                 const VerifyBound& bound, const VerifyFactors& factors);

}  // namespace capstan::cli
