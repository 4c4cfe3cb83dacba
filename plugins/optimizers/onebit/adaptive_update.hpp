#pragma once

#include <cstddef>
#include <vector>

#include "capstan/sdk/optimizer.hpp"
#include "plugins/optimizers/onebit/settings.hpp"

namespace capstan::optimizers {

/// Where a plugin's manifest puts the two moments among its states.
struct MomentStates {
  std::size_t first, second;
};

/// One update of Adam without bias correction, in which both moments follow the gradient: the warm-up.
void adaptive_update(const sdk::Slots& slots, MomentStates moments, const sdk::Step& step,
                     const std::vector<OneBitGroup>& groups);

}  // namespace capstan::optimizers
