#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cli/arguments.hpp"
#include "core/comm/communicator.hpp"
#include "core/config/config.hpp"
#include "core/data/token_data.hpp"
#include "core/model/model.hpp"

namespace capstan::cli {

/// A configuration and the plugins that it may name.
struct LoadedConfig {
  Config config;
  PluginIndex plugins;
  std::shared_ptr<Communicator> communicator;
};

/// Reads --config, or the default configuration, and connects the processes that a launcher has started. Throws
/// ConfigError, RuntimeFault. To train, the configuration must have all that a training needs, down to the number of
/// steps; otherwise optimizer, model, data and steps may lack.
enum class Purpose { kTraining, kOther };
LoadedConfig load_run(const ConfigArguments& arguments, Purpose purpose);

/// The model of capstan.model, its initial values drawn from capstan.run.seed. Throws ConfigError when none is named.
Model build_model(const LoadedConfig& loaded);

/// Tokens a sample: capstan.data.sequence_length, or what the model says.
std::int64_t sequence_length(const Config& config, const Model& model);

/// The data at `paths`, checked against the model's vocabulary. `key` names where paths come from, for messages.
TokenData open_data(const std::vector<std::string>& paths, const std::string& key, const Config& config,
                    const Model& model);

/// The micro-batches of `data`, in its order, dealt out to the ranks; a rest that fills no micro-batch is left out
/// unless it is all there is.
class Evaluation {
 public:
  Evaluation(const TokenData& data, std::int64_t micro_batch_size, int rank, int ranks);

  std::int64_t samples() const { return rows_ * batches_; }
  std::int64_t own_batches() const;  // of this rank; before the first next()
  Batch next();

 private:
  const TokenData& data_;
  BatchOrder order_;
  std::int64_t rows_, batches_, at_, stride_;
};

}  // namespace capstan::cli
