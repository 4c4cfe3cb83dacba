#pragma once

#include <cstdint>

#include "core/config/config.hpp"

namespace capstan::cli {

/// Keys of capstan.run that have no effect without another one, which a command line may give to a file that lacks it.
/// Throws ConfigError.
void check_run(const RunConfig& run);

/// Refuses a run before it begins that would need more passes over the data than data_efficiency allows. Throws
/// ConfigError.
void check_passes(const Config& config, std::int64_t samples);

}  // namespace capstan::cli
