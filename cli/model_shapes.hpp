#pragma once

#include "core/config/config.hpp"
#include "core/model/model.hpp"
#include "core/registry/plugin_index.hpp"

namespace capstan::cli {

/// The configuration's model, its tensors without values unless asked for. Throws PluginError, with a word on
/// --with-values for one whose construction reads values.
Model model_shapes(const Config& config, const PluginIndex& plugins, bool with_values);

}  // namespace capstan::cli
