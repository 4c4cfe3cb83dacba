#pragma once

#include <cstdint>

namespace capstan {

/// Counters of a run, in global samples and steps so that they keep their meaning on another world size.
struct Progress {
  std::int64_t global_steps = 0;  // steps done, skipped ones included
  std::int64_t updates = 0;       // steps whose optimizer ran
  std::int64_t skipped_steps = 0;
  std::int64_t global_samples = 0;
};

}  // namespace capstan
