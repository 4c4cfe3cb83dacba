#pragma once

#include <functional>

#include "core/comm/communicator.hpp"
#include "core/comm/rendezvous.hpp"
#include "core/run/loaded_config.hpp"

namespace capstan {

enum class Purpose { kTraining, kEvaluation, kAnalysis };

/// Reads a configuration and connects the processes that a launcher has started. To train, the configuration must have
/// all that a training needs, down to the number of steps, but for what the program of a run brings; otherwise
/// optimizer, model, data and steps may lack. An analysis has no batches: they may be of any size. Throws ConfigError,
/// PluginError, RuntimeFault. A mistake that all ranks find is left to rank 0 to print.
LoadedConfig load_run(const RunSource& source, Purpose purpose);
/// As above for processes that meet at a place of their own.
LoadedConfig load_run(const RunSource& source, Purpose purpose, const Rendezvous& rendezvous);

/// A start of processes that somebody else has brought together.
struct RunStart {
  ConfigText text;
  Rendezvous rendezvous;
  Communicator::Options limits;
  int world_size = 1;  // that the configuration is completed for
};
/// As above for such a start. Each rank throws what it finds wrong.
LoadedConfig load_run(const ConfigContext& context, Purpose purpose, const RunStart& start);

/// Calls `run`, and returns its exit code. Tells the other ranks an exception of `run`; a failure that all ranks have
/// is left to rank 0 to print.
int run_as_one(const LoadedConfig& loaded, const std::function<int()>& run);

}  // namespace capstan
