#pragma once

#include "core/config/resolve/effective.hpp"
#include "core/config/typed/config.hpp"
#include "core/text/problem.hpp"

namespace capstan {

/// What follows from other values: overlap_comm, contiguous_gradients, prefetch size, wall_clock_breakdown.
void derive_values(Effective& values, Problems& problems);

/// Switches reduce_scatter off, with a notice, where it would cut gradients that the optimizer needs whole.
void keep_gradients_whole(Effective& values, const ComponentManifest& optimizer, Problems& problems);

/// Switches contiguous_memory_optimization off, with a warning, where the keys are missing that it needs.
void settle_contiguous_memory(Effective& values, Problems& problems);

/// Raises the default of offload_optimizer.buffer_count for an optimizer with more states than it allows for.
void widen_buffers(Effective& values, const Config& config, const ComponentManifest& optimizer);

/// The smaller of stage3_prefetch_bucket_size and offload_param's buffers bounds what is read ahead.
void bound_read_ahead(ZeroConfig& zero);

/// The precision that fp16, bf16 and data_types make; pairs that exclude each other are errors.
PrecisionConfig resolve_precision(const Effective& values, Problems& problems);

/// Every rule between keys of different sections that needs no model.
void check_rules(const Effective& values, const Config& config, const PluginIndex& plugins, Problems& problems);

/// Keys that were given but have no effect in this combination: one notice each, with the reason.
void report_idle_keys(const Effective& values, const Config& config, const ConfigContext& context,
                      const PluginIndex& plugins, Problems& problems);

}  // namespace capstan
