#pragma once

#include <algorithm>
#include <capstan/sdk/permutation.hpp>
#include <capstan/sdk/random.hpp>
#include <cstdint>

/// The sample at a position of the run, 0 for the first: each pass over the data takes the blocks in their order, and
/// the samples of each block in an order of its own.
inline std::int64_t template_plugin_sample(std::int64_t position, std::int64_t samples, std::int64_t block,
                                           std::uint64_t seed) {
  const std::int64_t pass = position / samples, place = position % samples, number = place / block;
  const std::int64_t begin = number * block, size = std::min(block, samples - begin);
  const capstan::sdk::RandomStream stream(seed, "template_plugin");
  const auto key = stream.words(static_cast<std::uint64_t>(pass), static_cast<std::uint32_t>(number), 0)[0];
  const capstan::sdk::KeyedPermutation order(static_cast<std::uint64_t>(size), key);
  return begin + static_cast<std::int64_t>(order(static_cast<std::uint64_t>(place - begin)));
}
