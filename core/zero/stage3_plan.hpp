#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "core/zero/memory_plan.hpp"
#include "core/zero/partition.hpp"

namespace capstan {

/// How stage 3 treats a run's parameters: which of them come and go, in what form a rank keeps and sends its parts,
/// and what is fetched when. Parameters are indices of PlannedRun::parameters. `run` must outlive this.
class Stage3Plan {
 public:
  explicit Stage3Plan(const PlannedRun& run);

  /// Whole on every rank at all times (stage3_param_persistence_threshold, stage3_model_persistence_threshold).
  bool stays(std::size_t parameter) const { return stays_[parameter]; }
  /// Elements of a rank's part.
  std::int64_t part(std::size_t parameter, int rank) const { return range(parameter, rank).numel; }
  /// Bytes of a rank's part as it travels.
  std::int64_t sent_bytes(std::size_t parameter, int rank) const;
  /// Bytes of the scales that make codes of a rank's parts, of the rank that has most.
  std::int64_t scale_bytes() const;
  /// Bytes of a rank's parts of all frozen parameters as it keeps them.
  std::int64_t frozen_bytes(int rank) const;
  /// Ranks that keep a second copy between them; 1: there is none.
  int secondary_ranks() const;
  /// Bytes of a rank's slice of that copy.
  std::int64_t slice_bytes(std::size_t parameter) const;

  /// Parameters that are fetched together.
  struct Fetch {
    std::vector<std::size_t> from_all;     // ranks
    std::vector<std::size_t> from_second;  // copy
    std::int64_t times = 1;                // a step
  };
  /// What rank 0 needs for it beside the parameters themselves.
  std::int64_t buffer_bytes(const Fetch& fetch) const;
  /// Goes through the micro-batches of a step by the trace that the engine goes by. Tells what is fetched; returns the
  /// most elements that are in memory at one time.
  ///
  /// Where PlannedRun::uses is empty, a pass is taken to use each parameter once in forward, in the model's order, and
  /// those behind the first trained one once more in backward, the other way round: a gradient flows through these.
  std::int64_t follow(const std::function<void(const Fetch&)>& fetched) const;

 private:
  Range range(std::size_t parameter, int rank) const;
  bool is_coded(std::size_t parameter) const;
  std::vector<std::size_t> uses_of_a_pass() const;

  const PlannedRun& run_;
  Partition trained_, frozen_;
  std::vector<std::size_t> index_;  // the index of each parameter in its partition
  std::vector<bool> stays_;
};

}  // namespace capstan
