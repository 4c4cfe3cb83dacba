#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>

/// The distance between two levels, of which the largest value gets the last one.
inline float template_plugin_step(const float* values, std::size_t count, int levels) {
  float largest = 0;
  for (std::size_t i = 0; i < count; ++i) largest = std::max(largest, std::fabs(values[i]));
  return largest / static_cast<float>(levels);
}

/// The level nearest to a value.
inline float template_plugin_round(float value, float step) {
  return step > 0 ? std::nearbyint(value / step) * step : value;
}
