#pragma once

#include <cstdint>

#include "core/config/config.hpp"

namespace capstan {

/// Refuses a run without an optimizer or a number of steps, and keys of capstan.run that have no effect without another
/// one, which a command line may give to a file that lacks it. `brings_eval_data`: the program has data for
/// evaluations. Throws ConfigError.
void check_run(const Config& config, bool brings_eval_data);

/// Refuses a run before it begins that would need more passes over the data than data_efficiency allows. Throws
/// ConfigError.
void check_passes(const Config& config, std::int64_t samples);

}  // namespace capstan
