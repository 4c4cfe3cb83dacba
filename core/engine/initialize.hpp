#pragma once

#include <functional>
#include <string>

#include "capstan/plugin.h"
#include "core/engine/engine.hpp"

namespace capstan {

/// The host table for models, which exist before the engine that will run them: errors, log, JSON, batches, layers.
const capstan_host* model_host();

/// A model for initialize(). In several processes its large parameters have no memory until the engine takes them, so
/// that one that fits no process can be built for ZeRO stage 3; see without_values().
Model build_model(const std::function<Model()>& build);

/// An engine for `model` as a configuration file (JSON or TOML, or JSON as URL-safe base64) says. Logs the reader's
/// warnings. `program`: values that the program sets itself; they fill what the file leaves out or has as "auto".
/// Throws ConfigError with every problem of the file, also where it contradicts the program, PluginError, RuntimeFault.
Engine initialize(Model model, const std::string& config_path_or_base64, const ProgramValues& program = {});

}  // namespace capstan
