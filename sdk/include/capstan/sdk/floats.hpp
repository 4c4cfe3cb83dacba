#pragma once

#include <cstddef>
#include <cstdint>

#include "capstan/sdk/float_bits.hpp"
#include "capstan/sdk/tensor.hpp"

/// Numbers of 16 bits, for kernels that compute in float32.
namespace capstan::sdk {

/// Element `index` of float32, bfloat16 or float16 values.
inline float value_at(const Values& values, std::size_t index) {
  if (values.dtype == Dtype::kFloat32) return static_cast<const float*>(values.data)[index];
  const std::uint16_t bits = static_cast<const std::uint16_t*>(values.data)[index];
  return values.dtype == Dtype::kBFloat16 ? from_bfloat16(bits) : from_float16(bits);
}

/// Gives it another value, rounded to nearest even.
inline void set_value_at(const Values& values, std::size_t index, float value) {
  if (values.dtype == Dtype::kFloat32) {
    static_cast<float*>(values.data)[index] = value;
  } else {
    static_cast<std::uint16_t*>(values.data)[index] =
        values.dtype == Dtype::kBFloat16 ? to_bfloat16(value) : to_float16(value);
  }
}

}  // namespace capstan::sdk
