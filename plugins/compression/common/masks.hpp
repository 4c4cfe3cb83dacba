#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "capstan/sdk/compression.hpp"

/// Masks of 0 and 1 over the elements of parameters, or over units of them.
namespace capstan::compression {

/// How the elements of a flattened parameter belong to units that are kept or removed whole: runs of `inner` elements
/// are those of unit 0, 1, ... count - 1, 0, ... Rows: inner = columns. Heads: inner = columns of a head.
struct UnitLayout {
  std::uint64_t inner = 1, count = 1;
};

/// values = input * mask of its unit.
void mask_units(const sdk::CompressedPiece& piece, const UnitLayout& units, std::span<const std::uint8_t> mask,
                std::span<const float> input, std::span<float> values);
/// values = input * mask, element by element.
void mask_elements(std::span<const std::uint8_t> mask, std::span<const float> input, std::span<float> values);
/// `scores` = gradient * input, then gradient *= mask, element by element; without scores the latter alone.
void mask_gradient(std::span<const std::uint8_t> mask, std::span<const float> input, std::span<float> gradient,
                   std::span<float> scores);

/// The numbers of a piece's segments of `size` elements, for PieceRanks::sum_groups: sums of |input|, or of
/// gradient * input.
std::vector<double> sums_of_magnitudes(const sdk::CompressedPiece& piece, std::uint64_t size);
std::vector<double> sums_of_products(const sdk::CompressedPiece& piece, std::uint64_t size);

/// Makes mask 1 for the `keep` largest scores, of equal ones the first, else 0.
void keep_largest(std::span<const float> scores, std::uint64_t keep, std::span<std::uint8_t> mask);

/// ceil(ratio * count), as the share of what is kept counts. A product that is a whole number but for its rounding is
/// that number.
std::uint64_t kept_of(double ratio, std::uint64_t count);

}  // namespace capstan::compression
