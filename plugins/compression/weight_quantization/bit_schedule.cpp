#include "bit_schedule.hpp"

#include <algorithm>
#include <limits>
#include <utility>

namespace capstan::compression {

std::int64_t BitSchedule::evenly(std::int64_t period, std::int64_t next, std::int64_t factor) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  if (period == 0) return next;
  return factor > (kMost - next) / period ? kMost : next + period * factor;
}

BitSchedule::BitSchedule(std::vector<Weight> weights, double change_ratio, After after)
    : weights_(std::move(weights)), change_ratio_(change_ratio), after_(std::move(after)) {
  for (const Weight& weight : weights_) {
    state_.bits.push_back(weight.start_bits);
    state_.next.push_back(weight.period);
  }
}

std::vector<BitSchedule::Drop> BitSchedule::advance(const std::function<std::int64_t(std::size_t)>& factor) {
  ++state_.updates;
  ++state_.since;
  state_.dropped = SIZE_MAX;
  std::vector<Drop> drops;
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    if (state_.bits[i] == weights_[i].target_bits || state_.updates < state_.next[i]) continue;
    state_.next[i] = after_(weights_[i].period, state_.next[i], factor(i));
    --state_.bits[i];
    if (drops.empty()) {
      state_.dropped = i;
      state_.since_before = std::exchange(state_.since, 0);
    }
    drops.push_back({i, state_.bits[i], state_.next[i]});
  }
  return drops;
}

void BitSchedule::advance_to(std::int64_t updates) {
  while (state_.updates < updates) {
    // Nothing happens before the next drop but that the share falls, which is a function of `since`.
    std::int64_t event = updates;
    for (std::size_t i = 0; i < weights_.size(); ++i) {
      if (state_.bits[i] != weights_[i].target_bits)
        event = std::min(event, std::max(state_.next[i], state_.updates + 1));
    }
    const std::int64_t quiet = event - 1 - state_.updates;
    state_.updates += quiet;
    state_.since += quiet;
    advance([](std::size_t) { return 1; });
  }
}

double BitSchedule::share_after(std::int64_t updates) const {
  return std::max(0.0, 1.0 - change_ratio_ * static_cast<double>(updates));
}

double BitSchedule::share(std::size_t weight) const {
  if (change_ratio_ <= 0) return 0;
  const bool before = state_.dropped != SIZE_MAX && weight < state_.dropped;
  return share_after(before ? state_.since_before : state_.since);
}

std::int64_t BitSchedule::bits_to_fall() const {
  std::int64_t bits = 0;
  for (std::size_t i = 0; i < weights_.size(); ++i) bits += state_.bits[i] - weights_[i].target_bits;
  return bits;
}

}  // namespace capstan::compression
