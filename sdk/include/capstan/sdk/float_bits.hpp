#pragma once

#include <bit>
#include <cstdint>

/// Numbers of 16 bits, given as their bits. Needs nothing of LibTorch.
namespace capstan::sdk {

inline float from_bfloat16(std::uint16_t bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16); }

/// Nearest, ties to even.
inline std::uint16_t to_bfloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>(bits >> 16 | 0x40u);  // NaN stays NaN
  return static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

inline float from_float16(std::uint16_t bits) {
  const std::uint32_t sign = std::uint32_t{bits & 0x8000u} << 16;
  const std::uint32_t rest = bits & 0x7fffu;
  if (rest >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | (rest & 0x3ffu) << 13);  // infinity, NaN
  // Exact for normal and subnormal numbers: the exponent's difference of bias is a factor of 2^112.
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(std::bit_cast<float>(rest << 13) * 0x1p112f));
}

/// Nearest, ties to even.
inline std::uint16_t to_float16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000u);
  const std::uint32_t size = bits & 0x7fffffffu;
  if (size > 0x7f800000u) return sign | 0x7e00u;   // NaN
  if (size >= 0x477ff000u) return sign | 0x7c00u;  // 65520 and more: infinity
  if (size < 0x38800000u) {
    // Below 2^-14 the numbers are multiples of 2^-24, to which adding 2^-1 rounds a float32: its last bit is 2^-24.
    const float moved = std::bit_cast<float>(size) + 0.5f;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(moved) - 0x3f000000u));
  }
  const std::uint32_t rounded = size + 0xfffu + (size >> 13 & 1u);
  return static_cast<std::uint16_t>(sign | (rounded - 0x38000000u) >> 13);
}

}  // namespace capstan::sdk
