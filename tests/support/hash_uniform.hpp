#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "capstan/sdk/permutation.hpp"

namespace capstan::testing {

/// Repeatable values in [-1, 1), the inputs of the recorded runs: SplitMix64 started by FNV-1a of the name and a seed.
inline std::vector<float> hash_uniform(std::string_view name, std::size_t count, std::uint64_t seed) {
  constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15;
  std::uint64_t state = 0xCBF29CE484222325;
  for (const char c : name) state = (state ^ static_cast<unsigned char>(c)) * 0x100000001B3;
  state ^= seed * kGolden;
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    // splitmix64() adds the golden number once itself.
    const std::uint64_t z = sdk::splitmix64(state + i * kGolden);
    values[i] = static_cast<float>(z >> 40) * 0x1p-23f - 1;
  }
  return values;
}

}  // namespace capstan::testing
