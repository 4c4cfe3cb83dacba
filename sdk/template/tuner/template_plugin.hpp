#pragma once

#include <cstddef>
#include <random>
#include <span>
#include <vector>

/// The point to try next: with the share `curiosity` any of those left, else the one with the least prediction.
/// `left`: the points that were not chosen yet; at least one.
inline std::size_t template_plugin_choice(const std::vector<std::size_t>& left, std::span<const double> predictions,
                                          double curiosity, std::mt19937_64& random) {
  const double draw = static_cast<double>(random() >> 11) * 0x1p-53;
  if (draw < curiosity) return left[random() % left.size()];
  std::size_t best = left.front();
  for (const std::size_t point : left) {
    if (predictions[point] < predictions[best]) best = point;
  }
  return best;
}
