#pragma once

#include <algorithm>
#include <cmath>

/// The distance of two neighbours among the values that a row may have: its largest value has the largest code.
inline float template_plugin_scale(double largest, int bits) {
  const auto scale = static_cast<float>(largest / ((1 << (bits - 1)) - 1));
  return scale > 0.0f ? scale : 1.0f;  // a row of zeros stays one
}

/// The whole number whose multiple of `scale` is nearest.
inline int template_plugin_code(float value, float scale, int bits) {
  const auto most = static_cast<float>((1 << (bits - 1)) - 1);
  return static_cast<int>(std::clamp(std::nearbyint(value / scale), -most, most));
}
