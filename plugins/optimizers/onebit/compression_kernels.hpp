#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace capstan::optimizers {

/// Loops of the compressed all-reduce over a run of elements, in the calling thread. Signs are packed eight a byte, the
/// first element in the most significant bit, 1 for values from zero up; the bits after the last element are 1.

/// One pass over a buffer that holds value and error: packs its signs, and leaves what scale * sign misses.
void compress_signs(float* error, std::size_t count, float scale, std::uint8_t* signs);

/// error += the sum over workers of scales[i] * sign, signs[i] being worker i's. Returns the sum of squares.
double add_signs_and_measure(std::span<const std::uint8_t* const> signs, std::span<const float> scales, float* error,
                             std::size_t count);

/// out = scale * sign.
void expand_signs(const std::uint8_t* signs, float scale, float* out, std::size_t count);

}  // namespace capstan::optimizers
