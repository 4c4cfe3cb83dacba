#include "core/config/language/tables/sections.hpp"

namespace capstan::sections {

std::span<const Key> optimizer() {
  // clang-format off
  static constexpr Key kKeys[] = {
    {"optimizer", "object", "", "", kOptional, "000 001 002 003 004 DS",
     "The optimizer that the engine builds; without it, training needs one from the program.", "the engine, which builds the optimizer's plugin"},
    {"optimizer.type", "string", "", "", kRequired, "000 001 002 003 004 DS",
     "Which optimizer: a type that an installed plugin provides, in any letter case.", "the engine, which builds the optimizer's plugin"},
    {"optimizer.params", "object", "{}", "", kPlugin, "000 001 002 003 004 DS",
     "The optimizer's arguments; its plugin's manifest says which there are.", "the engine, which builds the optimizer's plugin"},
    {"optimizer.legacy_fusion", "boolean", "false", "", kNoEffect, "DS",
     "An older fp16 update path of DeepSpeed.", "there is one update path"},
    {"zero_allow_untested_optimizer", "boolean", "false", "", kNoEffect, "DS",
     "DeepSpeed's permission for optimizers outside its list.", "the optimizer's declared traits decide"},
    {"zero_force_ds_cpu_optimizer", "boolean", "true", "", kNoEffect, "DS",
     "DeepSpeed's refusal of foreign optimizers under offload.", "the optimizer's declared traits decide"},
    {"gradient_clipping", "number", "1.0", ">= 0", 0, "000 001 002 003 004 DS",
     "Clip the global L2 norm of the gradients to this; 0 switches clipping off.", kEngine},
    {"scheduler", "object", "", "", kOptional, "000 001 002 003 004 DS",
     "The learning-rate schedule; without it the rate stays as the optimizer has it.", "the engine, which builds the schedule's plugin"},
    {"scheduler.type", "string", "", "", kRequired, "000 001 002 003 004 DS",
     "Which schedule: a type that an installed plugin provides, in any letter case.", "the engine, which builds the schedule's plugin"},
    {"scheduler.params", "object", "{}", "", kPlugin, "000 001 002 003 004 DS",
     "The schedule's arguments; its plugin's manifest says which there are.", "the engine, which builds the schedule's plugin"},
  };
  // clang-format on
  return kKeys;
}

}  // namespace capstan::sections
