#pragma once

#include <cmath>
#include <cstdint>

/// The rate of update `index` (0 for the first). Pure: no counter of its own, so resuming needs nothing.
inline double template_plugin_rate(std::int64_t index, double base_lr, std::int64_t warmup_updates, double half_life) {
  if (index < warmup_updates) {
    // The first update already trains, so it gets 1/n of the way, not 0/n.
    return base_lr * static_cast<double>(index + 1) / static_cast<double>(warmup_updates);
  }
  return base_lr * std::exp2(-static_cast<double>(index - warmup_updates) / half_life);
}
