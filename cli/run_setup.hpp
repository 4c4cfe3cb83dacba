#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/arguments.hpp"
#include "core/config/config.hpp"
#include "core/data/token_data.hpp"
#include "core/engine/model.hpp"

namespace capstan::cli {

/// A configuration and the plugins that it may name.
struct LoadedConfig {
  Config config;
  PluginIndex plugins;
};

/// Reads --config, or the default configuration, for a run of this one process. Throws ConfigError.
LoadedConfig load_run(const ConfigArguments& arguments);

/// The model of capstan.model, its initial values drawn from capstan.run.seed. Throws ConfigError when none is named.
Model build_model(const LoadedConfig& loaded);

/// Tokens a sample: capstan.data.sequence_length, or what the model says.
std::int64_t sequence_length(const Config& config, const Model& model);

/// The data at `paths`, checked against the model's vocabulary. `key` names where paths come from, for messages.
TokenData open_data(const std::vector<std::string>& paths, const std::string& key, const Config& config,
                    const Model& model);

/// Mean loss over all of `data`, in its order; a rest that fills no micro-batch is left out unless it is all there is.
class Evaluation {
 public:
  Evaluation(const TokenData& data, std::int64_t micro_batch_size);

  std::int64_t samples() const { return rows_ * batches_; }
  std::int64_t batches() const { return batches_; }
  Batch next();  // starts over after the last

 private:
  const TokenData& data_;
  BatchOrder order_;
  std::int64_t rows_, batches_, at_ = 0;
};

}  // namespace capstan::cli
