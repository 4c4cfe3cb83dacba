#pragma once

#include "capstan/sdk/optimizer.hpp"
#include "plugins/optimizers/muon/muon_group.hpp"

namespace capstan::optimizers {

/// Muon and AdamW by LibTorch's operators, on the device that has the slots. As on the CPU but for roundings.
void update_muon_on_device(const sdk::Slots& slots, const sdk::Step& step, const MuonChoices& choices);

}  // namespace capstan::optimizers
