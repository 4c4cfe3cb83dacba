#include "core/config/language/tables/sections.hpp"

namespace capstan::sections {

std::span<const Key> activation_checkpointing() {
  // clang-format off
  static constexpr Key kKeys[] = {
    {"activation_checkpointing.partition_activations", "boolean", "false", "", 0, "001 002 DS",
     "Split saved activations over model-parallel ranks."},
    {"activation_checkpointing.cpu_checkpointing", "boolean", "false", "", 0, "001 002 DS",
     "Move saved activations to the host."},
    {"activation_checkpointing.contiguous_memory_optimization", "boolean", "false", "", 0, "001 002 DS",
     "Store saved activations contiguously; needs partition_activations and number_checkpoints."},
    {"activation_checkpointing.number_checkpoints", "integer", "", "> 0", 0, "001 002 DS",
     "Checkpoints to reserve memory for."},
    {"activation_checkpointing.synchronize_checkpoint_boundary", "boolean", "false", "", 0, "001 002 DS",
     "Synchronise the device at every boundary."},
    {"activation_checkpointing.profile", "boolean", "false", "", 0, "001 002 DS",
     "Log the time of each checkpointed call."},
  };
  // clang-format on
  return kKeys;
}

}  // namespace capstan::sections
