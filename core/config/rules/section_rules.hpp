#pragma once

#include "core/config/language/language.hpp"
#include "core/config/resolve/effective.hpp"
#include "core/config/resolve/offload_sections.hpp"
#include "core/config/typed/config.hpp"
#include "core/text/problem.hpp"

namespace capstan {

/// Rules inside one section: what must be given when it is on, and which of its values go together.
void check_data_rules(const Effective& values, const Config& config,
                      Problems& problems);                                  // data_efficiency, curriculum_learning
void check_compression_rules(const Effective& values, Problems& problems);  // compression_training, eigenvalue
/// True when elasticity is on and its section is sound.
bool check_elasticity_rules(const Effective& values, Problems& problems);
/// True when the key was given another value than its default.
bool differs(const SchemaNode& key, const Effective& values);
/// Stages, buffers and blocks of offload.
void check_offload(const Effective& values, const Config& config, const PluginIndex& plugins, Problems& problems);
/// The values that the update of this optimizer needs of an element: its states, the master and the gradient.
std::int64_t least_buffers(const Config& config, const ComponentManifest& optimizer);
/// What NVMe offload asks of the machine, folders and direct storage: an error where it is not so, a notice while a
/// file is only checked.
void check_storage(const Effective& values, const Config& config, bool check_only, Problems& problems);
/// The offload sections and aio: one notice for what has no effect in this run, with the reason.
void report_idle_offload_keys(const Effective& values, const Config& config, const PluginIndex& plugins,
                              Problems& problems);
/// autotuning where a run trains: lists to search are errors, and a notice says what searches.
void check_tuning(const Effective& values, const Config& config, const ConfigContext& context, Problems& problems);
void check_other_sections(const Effective& values, const Config& config, Problems& problems);

}  // namespace capstan
