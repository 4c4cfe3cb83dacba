#pragma once

#include <cstdint>

#include "core/zero/block_format.hpp"

namespace capstan {

/// Below, 1 / scale would leave the range of floats.
inline constexpr float kSmallestMagnitude = 1e-36f;

/// Symmetric quantisation by blocks, as ZeRO++ does it: with a the largest magnitude of a block and b bits,
///
///     r = 2^b / (2 a);  code = clip(round_half_even(x r), -2^(b-1), 2^(b-1) - 1);  scale = 1 / r;  x' = code * scale
///
/// so that an element is off by half a scale at most, or by one where the clip took it (x > a - scale / 2). A block of
/// zeros, or of numbers below 1e-36, becomes zeros; one that holds an infinity or a NaN becomes NaN everywhere, so that
/// the other side sees an overflow as well. Several threads may work where LibTorch has them.
///
/// `scales` holds format.blocks() floats, `codes` format.code_bytes() bytes.
void quantize(const BlockFormat& format, const float* values, float* scales, std::uint8_t* codes);
void dequantize(const BlockFormat& format, const float* scales, const std::uint8_t* codes, float* values);
/// Adds the values that dequantize() would give to `sum`.
void add_dequantized(const BlockFormat& format, const float* scales, const std::uint8_t* codes, float* sum);

}  // namespace capstan
