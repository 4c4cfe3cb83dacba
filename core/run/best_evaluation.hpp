#pragma once

#include <cstdint>
#include <optional>

#include "core/text/json.hpp"

namespace capstan {

/// The evaluations of a run so far: which had the lowest loss, and how many since then had none lower.
class BestEvaluation {
 public:
  /// An evaluation after `step`: whether its loss is lower than all before. NaN never is. A second evaluation after the
  /// same step, of a run that was resumed there, does not count.
  bool take(std::int64_t step, double loss);

  /// None before an evaluation with a number.
  std::optional<std::int64_t> step() const { return step_; }
  double loss() const { return loss_; }
  /// Evaluations in a row that had no lower loss.
  std::int64_t since() const { return since_; }

  /// For checkpoints and snapshots, from which a run goes on as if it had not stopped.
  Json json() const;
  /// `saved`: what json() gave, or null for a checkpoint without it. What cannot be read counts as no evaluation.
  void load(const Json* saved);

 private:
  std::optional<std::int64_t> step_, last_;  // of the lowest loss, and of the last evaluation
  double loss_ = 0;
  std::int64_t since_ = 0;
};

}  // namespace capstan
