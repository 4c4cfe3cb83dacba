#pragma once

#include "core/config/config.hpp"
#include "core/model/model.hpp"
#include "core/zero/memory_plan.hpp"

namespace capstan {

/// What a run of the model as configured would need, for plan_memory and plan_traffic. Shapes are all that is looked
/// at: the model may have been built under ShapesOnly. `local_world`: processes on one host. Throws ConfigError as an
/// engine would.
PlannedRun planned_run(const Model& model, const Config& config, const PluginIndex& plugins, int local_world);

}  // namespace capstan
