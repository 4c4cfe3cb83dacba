#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/config/typed/zero.hpp"

namespace capstan {

/// Memory through which values travel between stores of kind offload and the update: `slots` buffers of `tile_elements`
/// each.
struct OffloadStaging {
  std::int64_t tile_elements = 0;  // a multiple of Partition::kBlock wherever a parameter is cut
  std::int64_t slots = 0;          // tiles that are in memory at a time: one is read, one updated, one written
  bool operator==(const OffloadStaging&) const = default;
};

/// Bytes of a tile: three of them keep a disk busy.
inline constexpr std::int64_t kTileBytes = std::int64_t{32} << 20;
/// Most tiles in memory at a time.
inline constexpr std::int64_t kTileSlots = 3;

/// Buffers through which gradients pass to their store, and the bytes of each.
inline constexpr std::int64_t kGradientBuffers = 3, kGradientBufferBytes = std::int64_t{4} << 20;

/// What counts of offload_optimizer: its defaults where the section is absent or its device none.
OffloadOptimizerConfig optimizer_offload_in_force(const ZeroConfig& zero);
/// offload_param as it acts; without the section all parameters are on a store, not max_in_cpu's default fewer.
OffloadParamConfig parameter_offload_in_force(const ZeroConfig& zero);

/// Tiles that are in memory at a time: one more for reading ahead and one for writing behind, where they overlap.
std::int64_t tile_slots(const OffloadOptimizerConfig& offload);

/// The staging of a rank that has `elements` on a store. A tile has at most kTileBytes and `sub_group_size` elements,
/// and as few that `slots` of them take at most `bound_bytes`; but it has Partition::kBlock elements at least, and
/// `largest_whole` where the optimizer cannot have parts of a parameter (the elements of the largest parameter of this
/// rank; else 0). Where `bound_bytes` is too small for that, there are fewer slots, one at least.
/// `bytes_per_element`: of all that a tile stages. No work, no staging: {0, 0} without elements or bytes.
OffloadStaging offload_staging(std::int64_t bytes_per_element, std::int64_t largest_whole, std::int64_t sub_group_size,
                               std::int64_t elements, std::int64_t bound_bytes, std::int64_t slots = kTileSlots);

/// The bound of offload_staging() that buffer_count gives: so many buffers of the largest sub-group's elements in fp32.
/// What is too large to be counted is INT64_MAX.
std::int64_t staging_bound(std::int64_t buffer_count, std::int64_t largest_sub_group);

/// How many of the first sub-groups keep their state in memory under offload_optimizer.ratio, the share that is on a
/// store.
std::int64_t sub_groups_in_memory(double ratio, std::int64_t sub_groups);

/// Which parameters are on a store, where `max_in_cpu` elements of each rank stay in memory: those that still
/// fit stay, in the order given. `numels`: elements of the whole parameters.
std::vector<bool> stored_parameters(std::span<const std::int64_t> numels, int world, std::int64_t max_in_cpu);

}  // namespace capstan
