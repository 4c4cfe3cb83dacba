#pragma once

#include <cstdint>

namespace capstan {

/// When the next snapshot is due: every so many steps, or so seldom that snapshots cost no more than a share of the
/// time. One rank decides for all, because each measures another cost. [one thread]
class SnapshotPace {
 public:
  /// `every`: steps; 0: as `overhead`, a share of the time, allows.
  SnapshotPace(std::int64_t every, double overhead) : every_(every), overhead_(overhead) {}

  /// What a snapshot has cost: seconds of CPU time of the threads that made it, and of waiting for it.
  void note_cost(double seconds);
  /// Whether one is to be made after `steps` steps, `elapsed` seconds after the last one was begun. The first is due at
  /// once, because its cost is unknown.
  bool is_due(std::int64_t steps, double elapsed) const;

 private:
  std::int64_t every_;
  double overhead_;
  double cost_ = 0;  // seconds; a mean in which the newest counts most; 0: unknown
};

}  // namespace capstan
