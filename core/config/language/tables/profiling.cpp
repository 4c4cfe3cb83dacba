#include "core/config/language/tables/sections.hpp"

namespace capstan::sections {

std::span<const Key> profiling() {
  // clang-format off
  static constexpr Key kKeys[] = {
    {"flops_profiler.enabled", "boolean", "false", "", 0, "001 002 DS",
     "Profile one step; also switches wall_clock_breakdown on."},
    {"flops_profiler.profile_step", "integer", "1", ">= 0", 0, "001 002 DS",
     "The step to profile, counted from 0: 1 is the second step."},
    {"flops_profiler.module_depth", "integer", "-1", ">= -1", 0, "001 002 DS",
     "Depth of the aggregated report; -1: down to the innermost modules."},
    {"flops_profiler.top_modules", "integer", "1", ">= 0", 0, "001 002 DS",
     "Modules listed per depth."},
    {"flops_profiler.detailed", "boolean", "true", "", 0, "001 002 DS",
     "Print the whole tree of modules."},
    {"flops_profiler.output_file", "path", "", "", 0, "001 002 DS",
     "File of the report; absent: standard output."},
    {"flops_profiler.recompute_fwd_factor", "number", "0.0", ">= 0", 0, "DS",
     "Extra cost of forward when activations are recomputed."},
    {"comms_logger.enabled", "boolean", "false", "", 0, "002 DS",
     "Log communication calls.", "the log of collectives"},
    {"comms_logger.verbose", "boolean", "false", "", 0, "002 DS",
     "Print each call at once.", "the log of collectives"},
    {"comms_logger.prof_all", "boolean", "true", "", 0, "002 DS",
     "Record every operation.", "the log of collectives"},
    {"comms_logger.debug", "boolean", "false", "", 0, "002 DS",
     "Append the calling function to the name of the record.", "the log of collectives"},
    {"comms_logger.prof_ops", "string[]", "[]", "", 0, "002 DS",
     "Names to record when prof_all is false.", "the log of collectives"},
  };
  // clang-format on
  return kKeys;
}

}  // namespace capstan::sections
