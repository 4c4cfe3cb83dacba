#include "core/config/language/tables/sections.hpp"

namespace capstan::sections {

std::span<const Key> batch() {
  // clang-format off
  static constexpr Key kKeys[] = {
    {"train_batch_size", "integer", "", "> 0", 0, "000 001 002 003 004 DS",
     "Samples that make one step, over all ranks; derived from the other two keys when absent.", kEngine},
    {"train_micro_batch_size_per_gpu", "integer", "", "> 0", 0, "000 001 002 003 004 DS",
     "Samples that one device takes in one forward and backward; derived when absent.", kEngine},
    {"gradient_accumulation_steps", "integer", "", "> 0", 0, "000 001 002 003 004 DS",
     "Micro-batches accumulated per step; derived when absent.", kEngine},
    {"managed_gradient_accumulation", "boolean", "true", "", 0, "page DS",
     "Whether the engine counts micro-steps and ends the step on the boundary; false: every step() call ends a step."},
  };
  // clang-format on
  return kKeys;
}

}  // namespace capstan::sections
