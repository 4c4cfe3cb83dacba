#pragma once

#include "cli/arguments.hpp"
#include "core/elastic/launcher/plan.hpp"

namespace capstan::cli {

/// Reads the configuration of the training that is to be launched. Throws ConfigError, also where as many processes as
/// are to start may not train together.
ElasticPlan elastic_plan(const LaunchArguments& arguments);

}  // namespace capstan::cli
