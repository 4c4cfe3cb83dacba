#pragma once

#include <cstdint>
#include <numeric>

namespace capstan::sdk {

/// How many of `elements` each of `world_size` ranks serves in an exchange where every rank works on a part: the same
/// number on each, a multiple of 8 and of the world size, so that bits pack into whole bytes. A state declared
/// `like = "share"` has that many values for each parameter.
constexpr std::int64_t share_of(std::int64_t elements, std::int64_t world_size) {
  // Without a sign: inlined into some callers, GCC 12.2 gets the absolute value in lcm() wrong, and with it the share.
  const auto ranks = static_cast<std::uint64_t>(world_size);
  const std::uint64_t unit = std::lcm(std::uint64_t{8}, ranks);
  const std::uint64_t quantum = unit * ranks;
  return static_cast<std::int64_t>((static_cast<std::uint64_t>(elements) + quantum - 1) / quantum * unit);
}

}  // namespace capstan::sdk
