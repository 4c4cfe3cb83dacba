#pragma once

#include "core/config/config.hpp"
#include "core/config/resolve/effective.hpp"
#include "core/text/problem.hpp"

namespace capstan {

/// Completes the three batch keys from those that are given and checks them. Without any, the sizes stay 0: an error
/// when a training is about to start, a notice when only the file is checked.
BatchConfig resolve_batch(Effective& values, const ConfigContext& context, Problems& problems);

}  // namespace capstan
