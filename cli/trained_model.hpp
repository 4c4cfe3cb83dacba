#pragma once

#include <string>

#include "cli/arguments.hpp"
#include "core/engine/engine.hpp"
#include "core/run/loaded_config.hpp"

namespace capstan::cli {

/// Which trained weights a command takes: of a checkpoint (DIR or DIR:TAG), or where that is empty of a file or folder,
/// or where both are empty those that the model's own folder or file holds.
struct TrainedWeights {
  const std::string &checkpoint, &init_from;
};

/// Loads the configuration for a command that trains nothing: without what only training needs, and with the model that
/// the checkpoint was saved with, unless another one is named. Throws UsageError with the text `none_named` where no
/// weights are named, and what load_run() throws.
LoadedConfig load_to_evaluate(const ConfigArguments& arguments, const TrainedWeights& weights,
                              const std::string& none_named);

/// The file or folder that the weights come from where no checkpoint is named.
std::string weights_file(const TrainedWeights& weights, const LoadedConfig& loaded);

/// Called by all ranks. Throws RuntimeFault.
void take_weights(Engine& engine, const TrainedWeights& weights, const LoadedConfig& loaded);

}  // namespace capstan::cli
