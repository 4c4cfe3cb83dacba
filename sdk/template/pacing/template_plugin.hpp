#pragma once

#include <algorithm>
#include <cstdint>

/// The difficulty of step `step`, 1 for the first: first, 2 first, 4 first, up to last. Pure, so resuming needs nothing.
inline std::int64_t template_plugin_difficulty(std::int64_t step, std::int64_t first, std::int64_t last,
                                               std::int64_t steps) {
  std::int64_t difficulty = first;
  for (std::int64_t begun = steps; begun < step && difficulty < last; begun += steps) difficulty *= 2;
  return std::min(difficulty, last);
}
