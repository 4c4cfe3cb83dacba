#pragma once

#include "core/config/resolve/effective.hpp"
#include "core/config/typed/config.hpp"
#include "core/text/problem.hpp"

namespace capstan {

/// How many replicas of the model the processes hold; 1 where their number is not known.
int data_parallel_size(const Effective& values, const ConfigContext& context);

/// Completes the three batch keys from those that are given and checks them. Without any, the sizes stay 0, which
/// report_missing tells.
BatchConfig resolve_batch(Effective& values, const ConfigContext& context, Problems& problems);

}  // namespace capstan
