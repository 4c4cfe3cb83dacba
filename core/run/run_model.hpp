#pragma once

#include "core/model/model.hpp"
#include "core/run/run_parts.hpp"

namespace capstan {

/// The model of capstan.model, its initial values drawn from capstan.run.seed. Throws ConfigError when none is named.
Model build_model(const LoadedConfig& loaded);

/// The model of `parts`, in the same way; without one that of capstan.model.
Model build_model(const RunParts& parts, const LoadedConfig& loaded);

/// Seeds the generator of the host with capstan.run.seed, for initial values that are the same on all ranks.
void seed_values(const LoadedConfig& loaded);
/// From here on each rank draws random numbers of its own, for dropout for instance.
void seed_rank(const LoadedConfig& loaded);

}  // namespace capstan
