#pragma once

#include <functional>
#include <string>

#include "core/components/model_host.hpp"
#include "core/data/dataset.hpp"
#include "core/engine/engine.hpp"

namespace capstan {

struct Rendezvous;

/// Loads what the device of a configuration needs (capstan.run.device), so that LibTorch finds it: LibTorch looks for
/// devices once in a process, at the first seed (torch::manual_seed) or pinned tensor. A program that may train on a
/// GPU calls this function first of all; where the configuration says "cpu" it does nothing. What is wrong in the
/// configuration is left to initialize(). Throws ConfigError when it cannot be opened, PluginError when the device's
/// plugin cannot be loaded.
void use_device(const std::string& config_path_or_base64, const ProgramValues& program = {});

/// A model for initialize(). In several processes its large parameters have no memory until the engine takes them, so
/// that one that fits no process can be built for ZeRO stage 3; see without_values().
Model build_model(const std::function<Model()>& build);

/// The data at `source.paths`, read as the configuration says: by capstan.data.dataset, else as tokens in the format of
/// capstan.data.format. Throws RuntimeFault with what is wrong with the data, PluginError.
Dataset open_dataset(const Config& config, const PluginIndex& plugins, const Dataset::Source& source);

/// An engine for `model` as a configuration file (JSON or TOML, or JSON as URL-safe base64) says. Logs the reader's
/// warnings. `program`: values that the program sets itself; they fill what the file leaves out or has as "auto".
/// Throws ConfigError with every problem of the file, also where it contradicts the program, PluginError, RuntimeFault.
Engine initialize(Model model, const std::string& config_path_or_base64, const ProgramValues& program = {});

/// The same for a configuration that has been read, and processes that meet where `rendezvous` says.
Engine initialize(Model model, const ConfigText& text, const Rendezvous& rendezvous, const ProgramValues& program = {});

}  // namespace capstan
