#pragma once

#include <string>

#include "core/model/model.hpp"
#include "core/run/loaded_config.hpp"
#include "core/text/json.hpp"

namespace capstan {

/// The release of Capstan, and the build ids of the program and of the libraries of Capstan that this process runs.
std::string running_program();

/// What a process must have like all others of an elastic launch to train with them: the program, LibTorch, the
/// configuration but for what follows from the number of processes, the plugins that compute, the model.
Json made_of(const LoadedConfig& loaded, const Model& model);

/// What of it differs, as the beginning of a sentence: "the configuration (elasticity, optimizer) and the model have".
/// Empty where nothing does.
std::string changes_since(const Json& the_launch_began, const Json& now);

}  // namespace capstan
