#pragma once

#include <string>
#include <vector>

#include "core/compression/compressions.hpp"
#include "core/model/model.hpp"
#include "core/run/loaded_config.hpp"
#include "core/text/json.hpp"

namespace capstan::cli {

/// A checkpoint's state.json, for those who read its configuration again. `name`: for messages, "ckpt, global_step9".
struct SavedRunFacts {
  const Json& state;
  std::string name;
  std::vector<std::string> plugin_paths;

  const Json& config() const;  // the empty object where there is none
};

/// What the model of the run tells of itself.
struct SavedModel {
  Json facts;
  std::string name;
};

/// Builds the model that the configuration names, to ask it. Throws RuntimeFault where a program brought its own.
SavedModel saved_model(const SavedRunFacts& run);

/// The model of the run with these parameters in place of those that it had. Throws as saved_model().
Model saved_model_with(const SavedRunFacts& run, const Json& params);
/// Whether a model of a plugin was trained, rather than a program's own.
bool has_saved_model(const SavedRunFacts& run);

/// Names the model that `checkpoint`, DIR or DIR:TAG, was saved with, where neither the user's configuration nor the
/// command line names one. Throws RuntimeFault for a checkpoint whose state cannot be read.
void add_saved_model(RunSource& source, const std::string& checkpoint);

/// The config.json of transformers that the model of the run was built from; null where it was built in another way.
const Json* saved_model_config(const SavedRunFacts& run);

/// The compressions of the run with their plans and states. Throws RuntimeFault for a run without any,
/// ConfigError for a section whose plugin is not here.
Compressions saved_compressions(const SavedRunFacts& run);

}  // namespace capstan::cli
