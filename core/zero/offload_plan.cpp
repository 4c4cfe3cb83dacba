#include "core/zero/offload_plan.hpp"

#include <algorithm>

#include "core/zero/partition.hpp"

namespace capstan {
namespace {

std::int64_t whole_blocks(std::int64_t elements) { return elements / Partition::kBlock * Partition::kBlock; }

}  // namespace

OffloadOptimizerConfig optimizer_offload_in_force(const ZeroConfig& zero) {
  const auto& section = zero.offload_optimizer;
  return section && section->device != "none" ? *section : OffloadOptimizerConfig{};
}

OffloadParamConfig parameter_offload_in_force(const ZeroConfig& zero) {
  const auto& section = zero.offload_param;
  if (section && section->device != "none") return *section;
  OffloadParamConfig all_stored;
  all_stored.max_in_cpu = 0;
  return all_stored;
}

std::int64_t tile_slots(const OffloadOptimizerConfig& offload) {
  return 1 + (offload.pipeline_read.value_or(true) ? 1 : 0) + (offload.pipeline_write.value_or(true) ? 1 : 0);
}

OffloadStaging offload_staging(std::int64_t bytes_per_element, std::int64_t largest_whole, std::int64_t sub_group_size,
                               std::int64_t elements, std::int64_t bound_bytes, std::int64_t slots) {
  if (elements <= 0 || bytes_per_element <= 0) return {};
  const std::int64_t least = std::max(Partition::kBlock, largest_whole);
  const std::int64_t most = whole_blocks(
      std::min({kTileBytes / bytes_per_element, sub_group_size, bound_bytes / slots / bytes_per_element, elements}));
  const std::int64_t fits_at_once = std::min({kTileBytes, bound_bytes}) / bytes_per_element;
  // What is one tile anyway needs no whole blocks.
  const bool single = elements <= std::min(fits_at_once, sub_group_size);
  OffloadStaging staging;
  staging.tile_elements = std::min(elements, single ? elements : std::max(least, most));
  const std::int64_t tiles = (elements + staging.tile_elements - 1) / staging.tile_elements;
  const std::int64_t room = bound_bytes / (staging.tile_elements * bytes_per_element);
  staging.slots = std::clamp<std::int64_t>(std::min(tiles, room), 1, slots);
  return staging;
}

std::int64_t staging_bound(std::int64_t buffer_count, std::int64_t largest_sub_group) {
  constexpr std::int64_t kBytes = 4;
  if (buffer_count <= 0 || largest_sub_group <= 0) return 0;
  if (buffer_count > INT64_MAX / kBytes / largest_sub_group) return INT64_MAX;
  return buffer_count * largest_sub_group * kBytes;
}

std::int64_t sub_groups_in_memory(double ratio, std::int64_t sub_groups) {
  return static_cast<std::int64_t>((1 - ratio) * static_cast<double>(sub_groups));
}

std::vector<bool> stored_parameters(std::span<const std::int64_t> numels, int world, std::int64_t max_in_cpu) {
  std::vector<bool> stored;
  stored.reserve(numels.size());
  for (const std::int64_t numel : numels) {
    const std::int64_t part = (numel + world - 1) / world;
    stored.push_back(part > max_in_cpu);
    if (!stored.back()) max_in_cpu -= part;
  }
  return stored;
}

}  // namespace capstan
