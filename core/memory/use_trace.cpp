#include "core/memory/use_trace.hpp"

#include <algorithm>
#include <unordered_map>
#include <utility>

namespace capstan {
namespace {

using Uses = std::vector<std::size_t>;

/// The shortest order of which both are parts, by their longest common part (Hunt, Szymanski: A Fast Algorithm for
/// Computing Longest Common Subsequences, CACM 1977). Where each has other uses between two common ones, the numbers of
/// the units tell which are first: mostly they are those of the model's order, upwards in forward, downwards in
/// backward.
Uses merged(const Uses& a, const Uses& b) {
  struct Match {
    std::size_t in_a, in_b;
    std::ptrdiff_t before;  // the match that comes before this one; -1: none
  };
  std::unordered_map<std::size_t, Uses> places;  // of a unit in b, last first
  for (std::size_t j = b.size(); j-- > 0;) places[b[j]].push_back(j);
  std::vector<Match> matches;
  std::vector<std::ptrdiff_t> ends;  // for each length of a common part, the match at its end that is first in b
  for (std::size_t i = 0; i < a.size(); ++i) {
    for (const std::size_t j : places[a[i]]) {
      const auto longer = std::lower_bound(ends.begin(), ends.end(), j, [&](std::ptrdiff_t match, std::size_t place) {
        return matches[static_cast<std::size_t>(match)].in_b < place;
      });
      const auto match = static_cast<std::ptrdiff_t>(matches.size());
      matches.push_back({i, j, longer == ends.begin() ? -1 : *(longer - 1)});
      if (longer == ends.end()) {
        ends.push_back(match);
      } else {
        *longer = match;
      }
    }
  }
  // From the last to the first: what each has behind a match, then the match.
  Uses out;
  std::size_t i = a.size(), j = b.size();
  for (std::ptrdiff_t match = ends.empty() ? -1 : ends.back();;) {
    const bool is_start = match < 0;
    const Match common = is_start ? Match{0, 0, -1} : matches[static_cast<std::size_t>(match)];
    const std::size_t first_a = common.in_a + (is_start ? 0 : 1), first_b = common.in_b + (is_start ? 0 : 1);
    const bool upwards = is_start || (!out.empty() && a[common.in_a] <= out.back());
    while (i > first_a || j > first_b) {
      const bool from_a = j == first_b || (i > first_a && (a[i - 1] > b[j - 1]) == upwards);
      out.push_back(from_a ? a[--i] : b[--j]);
    }
    if (is_start) break;
    out.push_back(a[--i]);
    --j;
    match = common.before;
  }
  std::reverse(out.begin(), out.end());
  return out;
}

/// Whether some unit comes more often in `both` than in each of the two: then their orders differ.
bool uses_more(const Uses& both, const Uses& a, const Uses& b, std::size_t units) {
  const auto counts = [units](const Uses& uses) {
    std::vector<std::size_t> count(units);
    for (const std::size_t unit : uses) ++count[unit];
    return count;
  };
  const auto of_both = counts(both), of_a = counts(a), of_b = counts(b);
  for (std::size_t unit = 0; unit < units; ++unit) {
    if (of_both[unit] > std::max(of_a[unit], of_b[unit])) return true;
  }
  return false;
}

}  // namespace

UseTrace::UseTrace(std::vector<std::int64_t> numels, ResidencyLimits limits)
    : numels_(std::move(numels)), limits_(limits), seen_(numels_.size()) {}

void UseTrace::begin() {
  current_.clear();
  position_ = 0;
  left_out_ = {};
  follows_ = !record_.empty();
  strayed_ = false;
}

std::size_t UseTrace::use(std::size_t unit) {
  current_.push_back(unit);
  left_out_ = {};
  if (!follows_) return 0;
  const auto next = record_.begin() + static_cast<std::ptrdiff_t>(position_);
  const auto found = std::find(next, record_.end(), unit);
  follows_ = found != record_.end();
  if (!follows_) return 0;
  const auto at = static_cast<std::size_t>(found - record_.begin());
  left_out_ = {position_, at};
  position_ = at + 1;
  return at;
}

/// Whether what this pass has left out is not used any more.
bool UseTrace::is_settled() {
  repeated_ = current_ == previous_ ? repeated_ + 1 : 1;
  previous_ = current_;
  return repeated_ == kSettled;
}

void UseTrace::end() {
  if (follows_ && (current_.size() == record_.size() || !is_settled())) return;
  Uses both = follows_ ? current_ : merged(record_, current_);
  strayed_ = !record_.empty() && uses_more(both, record_, current_, numels_.size());
  record_ = strayed_ ? current_ : std::move(both);
  previous_.clear();
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

std::vector<std::size_t> UseTrace::ahead(std::int64_t live, const std::function<bool(std::size_t)>& is_remote) const {
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
    if (!is_remote(unit)) continue;
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
