#pragma once

#include "capstan/sdk/optimizer.hpp"

namespace capstan::optimizers {

/// Adafactor by LibTorch's operators, on the device that has the slots. As on the CPU but for roundings.
void update_adafactor_on_device(const sdk::Slots& slots, const sdk::Step& step);

}  // namespace capstan::optimizers
