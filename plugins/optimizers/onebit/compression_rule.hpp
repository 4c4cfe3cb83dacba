#pragma once

#include <cmath>
#include <cstring>

#include "plugins/optimizers/onebit/kernels.hpp"

// Error-compensated sign compression, an element at a time, as all devices do it.
namespace capstan::optimizers {

/// The root mean square: what one sign stands for.
CAPSTAN_EVERYWHERE inline float scale_of(double squares, std::size_t elements) {
  return elements == 0 ? 0.0f : static_cast<float>(std::sqrt(squares / static_cast<double>(elements)));
}

/// What a sign of that scale misses of a value. Nothing where the scale is not finite: it would never leave again.
CAPSTAN_EVERYWHERE inline float missed(float value, float scale) {
  if (!std::isfinite(scale)) return 0;
  return value - (value >= 0 ? scale : -scale);
}

/// The first of eight elements has the most significant bit.
CAPSTAN_EVERYWHERE inline std::uint8_t bit_of(std::size_t element) {
  return static_cast<std::uint8_t>(0x80u >> (element % 8));
}

CAPSTAN_EVERYWHERE inline float float_at(const std::uint8_t* bytes) {
  float value = 0;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

/// What a sign of a rank's adds to the mean of all.
CAPSTAN_EVERYWHERE inline float scale_at(const ArrivedShare& share, std::size_t rank) {
  return float_at(share.scale + rank * share.stride) / static_cast<float>(share.ranks);
}

}  // namespace capstan::optimizers
