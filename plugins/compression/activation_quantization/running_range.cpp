#include "running_range.hpp"

#include <cmath>

namespace capstan::compression {
namespace {

constexpr float kMomentum = 0.95F, kRest = 0.05F;

}  // namespace

void RunningRange::take(double low, double high) {
  if (low > high) return;
  if (low_ == high_) {
    low_ = low;
    high_ = high;
  }
  // In float32, in which the range is kept upstream.
  const auto mixed = [](double old, double now) {
    return static_cast<double>(static_cast<float>(old) * kMomentum + static_cast<float>(now) * kRest);
  };
  low_ = mixed(low_, low);
  high_ = mixed(high_, high);
}

void RunningRange::observe(double low, double high) {
  // A micro-batch that overflowed would stay in the range for ever.
  if (!std::isfinite(low) || !std::isfinite(high)) {
    low = 1;
    high = 0;
  }
  observed_.push_back(low);
  observed_.push_back(high);
  take(low, high);
}

void RunningRange::settle(const std::vector<double>& extremes) {
  low_ = settled_low_;
  high_ = settled_high_;
  for (std::size_t i = 0; i + 1 < extremes.size(); i += 2) take(extremes[i], extremes[i + 1]);
  set(low_, high_);
}

void RunningRange::set(double low, double high) {
  low_ = settled_low_ = low;
  high_ = settled_high_ = high;
  observed_.clear();
}

}  // namespace capstan::compression
