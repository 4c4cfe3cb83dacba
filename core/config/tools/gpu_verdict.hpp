#pragma once

#include <optional>

#include "core/config/config.hpp"

namespace capstan {

/// Checks for GPUs a configuration that was accepted for the CPU because no GPU is visible, and makes a notice of what
/// GPUs refuse. None where the configuration or the command line names the device, one process trains, or GPUs take it.
std::optional<Problem> refused_on_gpus(const ConfigText& text, ConfigContext context, const Config& accepted,
                                       const PluginIndex& plugins);

}  // namespace capstan
