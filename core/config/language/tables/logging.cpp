#include "core/config/language/tables/sections.hpp"

namespace capstan::sections {

std::span<const Key> logging() {
  // clang-format off
  static constexpr Key kKeys[] = {
    {"steps_per_print", "integer", "10", "> 0", kNullMeans, "000 001 002 004 DS",
     "A progress line every so many steps; null: never.", "the progress line"},
    {"wall_clock_breakdown", "boolean", "false", "", 0, "000 001 002 004 DS",
     "Time forward, backward and update; always so while flops_profiler is enabled.", "the engine's timers"},
    {"memory_breakdown", "boolean", "false", "", 0, "DS",
     "Print memory at milestones of the engine.", kEngine},
    {"dump_state", "boolean", "false", "", 0, "000 001 002 DS",
     "Print the resolved configuration, with the origin of each value, after start-up.", kEngine},
    {"log_level", "string", "", "debug|info|warning|error|critical", kAnyCase, "DS",
     "Level of the log."},
    {"vocabulary_size", "integer", "", "> 0", 0, "DS",
     "Alignment hint for tensor cores: a warning when not a multiple of 8.", "the validator, which warns of a bad multiple"},
    {"dataloader_drop_last", "boolean", "false", "", 0, "DS",
     "Drop the last short batch."},
    {"timers.throughput.enabled", "boolean", "true", "", 0, "DS",
     "The timer of samples per second.", "the progress line"},
    {"timers.throughput.synchronized", "boolean", "true", "", 0, "DS",
     "Synchronise the device around that timer."},
    {"graph_harvesting", "boolean", "false", "", 0, "DS",
     "Capture short sequences of kernels."},
  };
  // clang-format on
  return kKeys;
}

}  // namespace capstan::sections
