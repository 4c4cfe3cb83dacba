#pragma once

#include <cstdint>
#include <numeric>

namespace capstan::sdk {

/// How many of `elements` each of `world_size` ranks serves in an exchange where every rank works on a part: the same
/// number on each, a multiple of 8 and of the world size, so that bits pack into whole bytes. A state declared
/// `like = "share"` has that many values for each parameter.
constexpr std::int64_t share_of(std::int64_t elements, std::int64_t world_size) {
  const std::int64_t unit = std::lcm(std::int64_t{8}, world_size);
  const std::int64_t quantum = unit * world_size;
  return (elements + quantum - 1) / quantum * unit;
}

}  // namespace capstan::sdk
