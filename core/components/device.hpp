#pragma once

#include "core/config/config.hpp"

namespace capstan {

/// Loads what the device of a configuration needs, as use_device() does. Throws PluginError.
void load_device(const Config& config, const PluginIndex& plugins);

}  // namespace capstan
