#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cli/arguments.hpp"
#include "core/comm/communicator.hpp"
#include "core/config/config.hpp"
#include "core/data/batch_order.hpp"
#include "core/data/dataset.hpp"
#include "core/engine/engine.hpp"
#include "core/model/model.hpp"

namespace capstan::cli {

/// A configuration and the plugins that it may name.
struct LoadedConfig {
  Config config;
  PluginIndex plugins;
  std::shared_ptr<Communicator> communicator;
};

enum class Purpose { kTraining, kEvaluation, kAnalysis };

/// Reads --config, or the default configuration, and connects the processes that a launcher has started. To train, the
/// configuration must have all that a training needs, down to the number of steps; otherwise optimizer, model, data and
/// steps may lack. An analysis has no batches: they may be
/// of any size. Throws ConfigError, PluginError, RuntimeFault. What all ranks find wrong, rank 0 alone says.
LoadedConfig load_run(const ConfigArguments& arguments, Purpose purpose);

/// A start of processes that somebody else has brought together.
struct RunStart {
  ConfigText text;
  Rendezvous rendezvous;
  Communicator::Options limits;
  int world_size = 1;  // that the configuration is completed for
};
/// The same for such a start. Each rank says what it finds wrong.
LoadedConfig load_run(const ConfigArguments& arguments, Purpose purpose, const RunStart& start);

/// What `run` returns. What it throws the other ranks are told, and what all of them throw alike, rank 0 says.
int run_as_one(const LoadedConfig& loaded, const std::function<int()>& run);

/// The model of capstan.model, its initial values drawn from capstan.run.seed. Throws ConfigError when none is named.
Model build_model(const LoadedConfig& loaded);

/// Tokens a sample: capstan.data.sequence_length, or what the model says.
std::int64_t sequence_length(const Config& config, const Model& model);

/// The data at `paths`, by the component of capstan.data.dataset, checked against the model's vocabulary. `key` names
/// where paths come from, for messages.
Dataset open_data(const std::vector<std::string>& paths, const std::string& key, const LoadedConfig& loaded,
                  const Model& model);

/// This rank's micro-batch of the step under way, `micro_step` counted from 0.
Batch micro_batch(Engine& engine, const Dataset& data, const BatchOrder& order, std::int64_t micro_step);

/// All samples of `data`, in its order, in micro-batches that are dealt out to the ranks; the last is as small as what
/// remains. Each rank has as many: one for which none remains repeats the first, which then counts for nothing.
class Evaluation {
 public:
  Evaluation(const Dataset& data, std::int64_t micro_batch_size, int rank, int ranks);

  std::int64_t samples() const { return data_.samples(); }
  std::int64_t own_batches() const { return (batches_ + ranks_ - 1) / ranks_; }
  Batch next();

 private:
  const Dataset& data_;
  BatchOrder order_;
  std::int64_t rows_, batches_, ranks_, at_;
};

}  // namespace capstan::cli
