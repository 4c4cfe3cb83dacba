#include "core/elastic/snapshot_pace.hpp"

namespace capstan {
namespace {

/// What the copy takes from the caches and the memory of the threads that train is not in its own time.
constexpr double kBeside = 1.5;

}  // namespace

void SnapshotPace::note_cost(double seconds) { cost_ = cost_ == 0 ? seconds : 0.7 * cost_ + 0.3 * seconds; }

bool SnapshotPace::is_due(std::int64_t steps, double elapsed) const {
  if (every_ > 0) return steps % every_ == 0;
  return cost_ == 0 || kBeside * cost_ <= overhead_ * elapsed;
}

}  // namespace capstan
