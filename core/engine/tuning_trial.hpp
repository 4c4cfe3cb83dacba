#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/config/config.hpp"
#include "core/engine/timers.hpp"
#include "core/model/model.hpp"

namespace capstan {

/// What makes a run a trial of `capstan tune`: it measures the steps from autotuning.start_profile_step to
/// end_profile_step, counted from 0, and writes their wall time to autotuning.metric_path; or, with
/// autotuning.model_info.profile, looks at the model in its first forward and writes that to
/// autotuning.model_info_path. Rank 0 writes, to a file beside that is renamed. [engine]
class TuningTrial {
 public:
  /// Null where the configuration asks for neither.
  static std::unique_ptr<TuningTrial> of(const Config& config, int rank);

  explicit TuningTrial(const Config& config, int rank) : config_(config), rank_(rank) {}

  void step_begins(const Accelerator& accelerator);
  void forward_ends(const Model& model, const Accelerator& accelerator);
  /// `spans`: the step's timers. Throws RuntimeFault when the file cannot be written.
  void step_ends(std::int64_t step, const Spans& spans, const Accelerator& accelerator);
  /// What it was to measure is written: the run may end.
  bool ended() const { return ended_; }

 private:
  void write_metrics(const Accelerator& accelerator);

  const Config& config_;
  int rank_;
  bool begun_ = false, ended_ = false;
  std::uint64_t memory_before_ = 0;
  std::chrono::steady_clock::time_point last_;
  std::vector<double> seconds_;                     // of each measured step
  double forward_ = 0, backward_ = 0, update_ = 0;  // milliseconds of all of them
};

}  // namespace capstan
