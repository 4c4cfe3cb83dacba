#include "core/memory/use_trace.hpp"

#include <algorithm>
#include <utility>

namespace capstan {

UseTrace::UseTrace(std::vector<std::int64_t> numels, ResidencyLimits limits)
    : numels_(std::move(numels)), limits_(limits), seen_(numels_.size()) {}

void UseTrace::begin() {
  current_.clear();
  position_ = 0;
  follows_ = !record_.empty();
  strayed_ = false;
}

std::size_t UseTrace::use(std::size_t unit) {
  current_.push_back(unit);
  if (follows_) {
    if (position_ < record_.size() && record_[position_] == unit) {
      ++position_;
    } else {
      follows_ = false;
      strayed_ = true;
    }
  }
  return current_.size() - 1;
}

void UseTrace::end() {
  if (follows_ && position_ == record_.size()) return;
  strayed_ = !record_.empty();
  record_ = current_;
  measure();
}

/// Backwards over two rounds, so that the second round's first uses are known to the first one's last.
void UseTrace::measure() {
  distance_.resize(record_.size());
  std::vector<std::int64_t> next(numels_.size(), -1);  // elements between the end and the unit's next use
  std::int64_t walked = 0;                             // elements from here to the end
  for (int round = 0; round < 2; ++round) {
    for (std::size_t at = record_.size(); at-- > 0;) {
      const std::size_t unit = record_[at];
      distance_[at] = next[unit] < 0 ? INT64_MAX : walked - next[unit];
      walked += numels_[unit];
      next[unit] = walked;
    }
  }
}

bool UseTrace::is_kept(std::size_t position) const {
  return follows_ && distance_[position] < limits_.max_reuse_distance;
}

std::vector<std::size_t> UseTrace::ahead(std::int64_t live, const std::function<bool(std::size_t)>& is_away) const {
  std::vector<std::size_t> chosen;
  if (!follows_) return chosen;
  ++search_;
  std::int64_t window = 0, fetched = 0;
  bool needed_next = false;
  for (std::size_t at = position_; at < record_.size() && window < limits_.prefetch; ++at) {
    const std::size_t unit = record_[at];
    if (seen_[unit] == search_) continue;
    seen_[unit] = search_;
    window += numels_[unit];
    if (!is_away(unit)) continue;
    if (live + fetched >= limits_.max_live) break;
    chosen.push_back(unit);
    fetched += numels_[unit];
    needed_next |= at == position_;
  }
  // Half a window at a time: one call for many small ones, and the other half on its way meanwhile.
  if (!needed_next && fetched < limits_.prefetch / 2) chosen.clear();
  return chosen;
}

}  // namespace capstan
