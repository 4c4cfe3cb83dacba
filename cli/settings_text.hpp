#pragma once

#include <string>

#include "cli/terminal.hpp"
#include "core/config/config.hpp"
#include "core/data/dataset.hpp"
#include "core/model/model.hpp"

namespace capstan::cli {

/// The block at the start of a run: what is in force and, where that may surprise, where it came from.
std::string settings_text(const Config& config, const PluginIndex& plugins, const Model& model, const Dataset& data,
                          const Terminal& terminal);

}  // namespace capstan::cli
