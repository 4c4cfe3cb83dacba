#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>

/// Quantisers of runs of float32 values, for compressions: plain loops that compilers turn into vector code, without
/// LibTorch. Nothing here allocates or throws; all is for any thread. Formulas: DeepSpeed's compression library
/// (compression/utils.py), with values as (code - zero point) * scale, rounded once.
/// Compiles a function for AVX2 as well, which the dynamic linker chooses where the processor has it. Without fused
/// multiply-add, so that both give the same bits.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define CAPSTAN_QUANTIZE_CLONES __attribute__((target_clones("default", "avx2")))
#else
#define CAPSTAN_QUANTIZE_CLONES
#endif

namespace capstan::sdk::quantize {

namespace detail {

constexpr std::size_t kLanes = 16;
/// Adding it rounds a float32 of less than 2^22 to an integer, half to even.
constexpr float kRound = 12582912.0f;  // 1.5 * 2^23
constexpr int kRoundBits = 22;

inline float rounded(float x) { return (x + kRound) - kRound; }
inline std::int32_t magnitude_bits(float x) { return std::bit_cast<std::int32_t>(x) & 0x7fffffff; }
/// x where it is above the threshold or NaN, else 0; without a branch, which would be guessed wrong half of the time.
inline float if_above(float x, float threshold) {
  const std::uint32_t mask = -static_cast<std::uint32_t>(!(x <= threshold));
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(x) & mask);
}
inline float clamped(float x, float low, float high) {
  const float at_least = x < low ? low : x;
  return at_least > high ? high : at_least;
}

}  // namespace detail

/// The largest |x|; 0 of nothing, NaN where one is NaN.
CAPSTAN_QUANTIZE_CLONES static inline float largest_magnitude(std::span<const float> x) {
  constexpr std::size_t n = detail::kLanes;
  std::int32_t lanes[n] = {}, largest = 0;  // bits of magnitudes, which rise with them; NaN is above infinity
  std::size_t i = 0;
  for (; i + n <= x.size(); i += n) {
    for (std::size_t k = 0; k < n; ++k) {
      const std::int32_t size = detail::magnitude_bits(x[i + k]);
      lanes[k] = lanes[k] < size ? size : lanes[k];
    }
  }
  for (; i < x.size(); ++i) largest = std::max(largest, detail::magnitude_bits(x[i]));
  for (const std::int32_t lane : lanes) largest = std::max(largest, lane);
  return std::bit_cast<float>(largest);
}

struct Extremes {
  float low, high;
};

/// The smallest and the largest of at least one value; both NaN where one is NaN.
CAPSTAN_QUANTIZE_CLONES static inline Extremes extremes(std::span<const float> x) {
  constexpr std::size_t n = detail::kLanes;
  float low[n], high[n];
  std::int32_t size[n] = {}, largest = 0;  // bits of magnitudes: comparisons of values pass over NaN
  std::fill_n(low, n, x[0]);
  std::fill_n(high, n, x[0]);
  std::size_t i = 0;
  for (; i + n <= x.size(); i += n) {
    for (std::size_t k = 0; k < n; ++k) {
      low[k] = x[i + k] < low[k] ? x[i + k] : low[k];
      high[k] = x[i + k] > high[k] ? x[i + k] : high[k];
      size[k] = std::max(size[k], detail::magnitude_bits(x[i + k]));
    }
  }
  Extremes found{*std::min_element(low, low + n), *std::max_element(high, high + n)};
  for (; i < x.size(); ++i) {
    found = {std::min(found.low, x[i]), std::max(found.high, x[i])};
    largest = std::max(largest, detail::magnitude_bits(x[i]));
  }
  for (const std::int32_t lane : size) largest = std::max(largest, lane);
  const float widest = std::bit_cast<float>(largest);
  return std::isnan(widest) ? Extremes{widest, widest} : found;
}

/// Of the elements whose magnitude is above `threshold`: the sum of magnitudes, in float64, and how many they are. NaN
/// counts as above.
struct Magnitudes {
  double sum = 0, count = 0;
};
CAPSTAN_QUANTIZE_CLONES static inline Magnitudes magnitudes_above(std::span<const float> x, float threshold) {
  constexpr std::size_t n = detail::kLanes, run = 4096;  // elements that the first cache keeps for the second loop
  Magnitudes total;
  double sums[n] = {};
  for (std::size_t begin = 0; begin < x.size(); begin += run) {
    const std::size_t end = std::min(begin + run, x.size()), whole = begin + (end - begin) / n * n;
    for (std::size_t i = begin; i < whole; i += n) {
      for (std::size_t k = 0; k < n; ++k) {
        sums[k] += static_cast<double>(detail::if_above(std::fabs(x[i + k]), threshold));
      }
    }
    std::int32_t count = 0;
    for (std::size_t i = begin; i < end; ++i) count += static_cast<std::int32_t>(!(std::fabs(x[i]) <= threshold));
    total.count += count;
    for (std::size_t i = whole; i < end; ++i) {
      total.sum += static_cast<double>(detail::if_above(std::fabs(x[i]), threshold));
    }
  }
  for (const double sum : sums) total.sum += sum;
  return total;
}

/// A value rounded to the nearest that float16 holds, half to even; what is too large becomes float16's largest, what
/// is too small its smallest above 0.
inline float as_float16(float value) {
  if (!(value > 0)) return value;
  constexpr float kLargest = 65504.0f, kSmallest = 5.9604645e-8f;  // 2^-24
  // Below 2^-14 float16 has steps of 2^-24, above it 11 significant bits.
  int exponent = 0;
  std::frexp(value, &exponent);
  const float step = std::ldexp(1.0f, std::max(exponent - 11, -24));
  return std::clamp(std::nearbyint(value / step) * step, kSmallest, kLargest);
}

/// How a group of values becomes codes: value = (code - zero_point) * scale, code in [low, high].
struct Grid {
  float scale = 0;  // 0: the values are all alike, `constant`, which is NaN of a group that is not finite
  std::int32_t zero_point = 0;
  float low = 0, high = 0;
  bool asymmetric = false;  // levels are counted from that of the smallest value
  bool fine = false;        // more levels than the fast rounding tells apart
  float constant = 0;

  float first_level() const { return low - static_cast<float>(zero_point); }  // in multiples of the scale
};

namespace detail {

inline Grid grid_of(float scale, int bits, bool as_half) {
  Grid grid;
  if (!std::isfinite(scale)) {
    grid.constant = std::numeric_limits<float>::quiet_NaN();
    return grid;
  }
  grid.scale = as_half ? as_float16(scale) : scale;
  grid.low = -std::ldexp(1.0f, bits - 1);
  grid.high = std::ldexp(1.0f, bits - 1) - 1;
  grid.fine = bits > kRoundBits;
  return grid;
}

/// Calls use(i, code) for each value, with its code as a float32.
template <class Use>
void for_each_code(std::span<const float> x, const Grid& grid, Use&& use) {
  const float scale = grid.scale, low = grid.low, high = grid.high;
  if (grid.fine) {
    const float first = grid.asymmetric ? grid.first_level() : 0, shift = grid.asymmetric ? low : 0;
    const float origin = first * scale;
    for (std::size_t i = 0; i < x.size(); ++i) {
      use(i, clamped(std::nearbyint((x[i] - origin) / scale) + shift, low, high));
    }
  } else if (grid.asymmetric) {
    const float origin = grid.first_level() * scale, levels = high - low;
    for (std::size_t i = 0; i < x.size(); ++i) {
      use(i, clamped(rounded((x[i] - origin) / scale), 0.0f, levels) + low);
    }
  } else {
    for (std::size_t i = 0; i < x.size(); ++i) use(i, clamped(rounded(x[i] / scale), low, high));
  }
}

}  // namespace detail

/// Symmetric quantisation to `bits` bits, 3 to 32: scale = 2 max|x| / 2^bits. `as_half`: the scale is rounded to one
/// that float16 holds. Where max|x| is infinite or NaN the whole group becomes NaN: no value hides another's fault.
inline Grid symmetric_grid(float largest, int bits, bool as_half = false) {
  return detail::grid_of(largest / std::ldexp(1.0f, bits - 1), bits, as_half);
}

/// Asymmetric quantisation to `bits` bits, 3 to 32: scale = (max - min) / 2^bits, and the first level is the multiple
/// of it nearest to min. A group whose values are all alike, as far as float32 tells multiples of the scale apart,
/// keeps its value; one whose range float32 does not hold becomes NaN.
inline Grid asymmetric_grid(float low, float high, int bits, bool as_half = false) {
  Grid grid = detail::grid_of((high - low) / std::ldexp(1.0f, bits), bits, as_half);
  if (std::isnan(grid.constant)) return grid;
  grid.asymmetric = true;
  grid.constant = low;
  const float first = grid.scale > 0 ? std::nearbyint(low / grid.scale) : 0;
  constexpr float kMost = 1073741824.0f;  // zero points are 32-bit numbers
  if (!(std::fabs(first) < kMost) || (high - low) <= std::fabs(low) * 0x1p-22f) {
    grid.scale = 0;
    return grid;
  }
  grid.zero_point = static_cast<std::int32_t>(grid.low - first);
  return grid;
}

/// What the values become. `out` may be `x`.
CAPSTAN_QUANTIZE_CLONES static inline void to_grid(std::span<const float> x, const Grid& grid, float* out) {
  if (!(grid.scale > 0)) {
    std::fill_n(out, x.size(), grid.constant);
    return;
  }
  const float scale = grid.scale, zero = static_cast<float>(grid.zero_point);
  detail::for_each_code(x, grid, [&](std::size_t i, float code) { out[i] = (code - zero) * scale; });
}

/// Their codes, of a grid of at most 8 bits.
CAPSTAN_QUANTIZE_CLONES static inline void to_codes(std::span<const float> x, const Grid& grid, std::int8_t* codes) {
  if (!(grid.scale > 0)) {
    std::fill_n(codes, x.size(), static_cast<std::int8_t>(grid.constant == 0 ? 0 : 1));
    return;
  }
  detail::for_each_code(x, grid, [&](std::size_t i, float code) { codes[i] = static_cast<std::int8_t>(code); });
}

/// Values of two magnitudes or one: `size` with the sign of what is farther from 0 than `above`, 0 for the rest; all
/// are NaN where `size` is. `out` may be `x`.
CAPSTAN_QUANTIZE_CLONES static inline void to_signs(std::span<const float> x, float size, float above, float* out) {
  if (std::isnan(size)) {
    std::fill_n(out, x.size(), size);
    return;
  }
  for (std::size_t i = 0; i < x.size(); ++i) out[i] = std::fabs(x[i]) > above ? std::copysign(size, x[i]) : 0.0f;
}

/// The scale that goes with codes: of values that are all alike that value itself, whose code is 1.
inline float scale_of(const Grid& grid) { return grid.scale > 0 ? grid.scale : grid.constant; }

}  // namespace capstan::sdk::quantize
