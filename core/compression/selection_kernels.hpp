#pragma once

#include <cstddef>
#include <cstdint>

namespace capstan {

/// Values as whole numbers that rise as the values do. Both zeros have one.
std::uint32_t selection_key(float value);
float selection_value(std::uint32_t key);

/// What collect_keys() found.
struct CollectedKeys {
  std::size_t inside = 0, above = 0;
};

/// Writes the keys of those of `count` values that lie from `low` to `high`, in their order, to `out`, which has room
/// for count + 16 of them, and counts those above.
CollectedKeys collect_keys(const float* values, std::size_t count, std::uint32_t low, std::uint32_t high,
                           std::uint32_t* out);
/// mask[i] = values[i] >= threshold; returns how many are equal to it. `mask` null: only counts.
std::size_t mask_from(const float* values, std::size_t count, float threshold, std::uint8_t* mask);

}  // namespace capstan
