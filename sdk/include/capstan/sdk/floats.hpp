#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "capstan/sdk/tensor.hpp"

/// Numbers of 16 bits, for kernels that compute in float32.
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

/// Element `index` of float32, bfloat16 or float16 values.
inline float value_at(const Values& values, std::size_t index) {
  if (values.dtype == Dtype::kFloat32) return static_cast<const float*>(values.data)[index];
  const std::uint16_t bits = static_cast<const std::uint16_t*>(values.data)[index];
  return values.dtype == Dtype::kBFloat16 ? from_bfloat16(bits) : from_float16(bits);
}

}  // namespace capstan::sdk
