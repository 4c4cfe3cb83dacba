#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/checkpoint/checkpoint.hpp"

namespace capstan {

/// A tensor that two checkpoints both have, with other values or another shape.
struct TensorDifference {
  std::string parameter, state;
  std::vector<std::int64_t> shape_a, shape_b;
  std::string dtype_a, dtype_b;  // as safetensors calls them
  std::int64_t elements = 0;     // 0: shapes differ or parts are missing, and no values are compared
  std::int64_t differing = 0;    // elements that differ; NaN equals NaN
  double largest_absolute = 0;   // |a - b|; infinite where one of them is not finite
  double largest_relative = 0;   // |a - b| / max(|a|, |b|), the largest of all elements
};

/// A value of the state that is not the same on both sides.
struct StateDifference {
  std::string path;  // "zero_optimization.stage"
  Json a, b;         // null: it is not there
};

struct CheckpointDiff {
  std::int64_t equal_tensors = 0;
  std::vector<TensorDifference> tensors;
  std::vector<std::string> only_a, only_b;  // "exp_avg of 'fc.weight'"
  std::vector<StateDifference> counters;    // counters of the run and the loss scale, where both sides have them
  std::vector<StateDifference> settings;    // who wrote it, world, optimizer, schedule, client state, configuration

  /// Whether values and counters are the same. Settings do not count: they say how a run went on, not where it is.
  bool equal() const { return tensors.empty() && only_a.empty() && only_b.empty() && counters.empty(); }
};

/// Compares two checkpoints, whoever wrote them and however their tensors are cut. States of one rank's own, of random
/// number generators for instance, are compared where both sides have them. No more than a few MB are in memory beside
/// the files, which stay mapped.
CheckpointDiff compare_checkpoints(const CheckpointContents& a, const CheckpointContents& b);

}  // namespace capstan
