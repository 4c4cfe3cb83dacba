#pragma once

#include "capstan/sdk/float_bits.hpp"
#include "cuda_runtime.h"

// Conversions of CUDA's cuda_bf16.h, for kernels on a CPU.

struct __nv_bfloat16 {
  std::uint16_t bits;
};

inline float __bfloat162float(__nv_bfloat16 value) { return capstan::sdk::from_bfloat16(value.bits); }

/// Nearest, ties to even; any NaN becomes 0x7fff.
inline __nv_bfloat16 __float2bfloat16_rn(float value) {
  if (value != value) return {0x7fff};
  return {capstan::sdk::to_bfloat16(value)};
}
inline __nv_bfloat16 __float2bfloat16(float value) { return __float2bfloat16_rn(value); }
