#pragma once

#include "capstan/sdk/float_bits.hpp"
#include "cuda_runtime.h"

// Conversions of CUDA's cuda_fp16.h, for kernels on a CPU.

struct __half {
  std::uint16_t bits;
};

/// Any NaN becomes 0x7fffffff.
inline float __half2float(__half value) {
  if ((value.bits & 0x7fffu) > 0x7c00u) return std::bit_cast<float>(0x7fffffffu);
  return capstan::sdk::from_float16(value.bits);
}

/// Nearest, ties to even; any NaN becomes 0x7fff.
inline __half __float2half_rn(float value) {
  if (value != value) return {0x7fff};
  return {capstan::sdk::to_float16(value)};
}
inline __half __float2half(float value) { return __float2half_rn(value); }
