#include "cli/run_setup.hpp"

#include <ATen/Context.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <utility>

#include "cli/config_arguments.hpp"
#include "core/engine/initialize.hpp"
#include "core/errors.hpp"
#include "core/log.hpp"
#include "core/registry/registry.hpp"

namespace capstan::cli {
namespace {

/// Launchers tell the number of processes in the environment. Training apart in each of them would look like training
/// together, and write over each other's files.
void refuse_several_processes() {
  for (const char* name : {"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS"}) {
    const char* value = std::getenv(name);
    if (value && std::atoi(value) > 1) {
      throw RuntimeFault(std::string(name) + " is " + value +
                         ": this release trains in one process. Start it without a launcher, or unset " + name + ".");
    }
  }
}

TokenData::Format format_named(const std::string& name) {
  static const std::map<std::string, TokenData::Format, std::less<>> kNames = {
      {"auto", TokenData::Format::kAuto}, {"bytes", TokenData::Format::kBytes}, {"uint16", TokenData::Format::kUint16}};
  const auto found = kNames.find(name);
  if (found == kNames.end()) throw ConfigError("capstan.data.format: '" + name + "' is not auto, bytes or uint16.");
  return found->second;
}

}  // namespace

LoadedConfig load_run(const ConfigArguments& arguments) {
  refuse_several_processes();
  LoadedConfig loaded;
  loaded.config = load_config(config_text(arguments), config_context(arguments), loaded.plugins);
  for (const std::string& warning : loaded.plugins.warnings()) log::warning(warning);
  return loaded;
}

Model build_model(const LoadedConfig& loaded) {
  const Config& config = loaded.config;
  if (!config.run.model) {
    throw ConfigError(
        "capstan.model: not given. Name a model with --model, for instance --model gpt:tiny, or in the "
        "configuration: \"capstan\": {\"model\": \"gpt:tiny\"}. 'capstan plugins list' shows the models.");
  }
  at::manual_seed(config.run.seed);
  Registry registry(loaded.plugins, config.plugin_sha256);
  const ComponentChoice& choice = *config.run.model;
  return Model(registry.create(choice.where, "model", choice.type, choice.params, model_host()));
}

std::int64_t sequence_length(const Config& config, const Model& model) {
  if (config.run.sequence_length) return *config.run.sequence_length;
  const Json facts = model.describe();
  const Json* length = facts.find("sequence_length");
  if (length && length->is_integer()) return length->as_integer();
  throw ConfigError("capstan.data.sequence_length: not given, and model '" + model.description() +
                    "' has none of its own. Give --seq.");
}

TokenData open_data(const std::vector<std::string>& paths, const std::string& key, const Config& config,
                    const Model& model) {
  if (paths.empty()) {
    throw ConfigError(key +
                      ": not given. Name text files or folders, for instance --data corpus/, or in the "
                      "configuration: \"capstan\": {\"data\": {\"path\": \"corpus/\"}}.");
  }
  TokenData data(paths, format_named(config.run.data_format), sequence_length(config, model));
  const Json facts = model.describe();
  if (const Json* size = facts.find("vocab_size"); size && size->is_integer()) data.set_vocabulary(size->as_integer());
  return data;
}

Evaluation::Evaluation(const TokenData& data, std::int64_t micro_batch_size)
    : data_(data),
      order_(data.samples(), 0, /*shuffle=*/false),
      rows_(std::min(micro_batch_size, data.samples())),
      batches_(data.samples() / rows_) {}

Batch Evaluation::next() {
  const std::int64_t first = at_ * rows_;
  at_ = (at_ + 1) % batches_;
  return token_batch(data_, order_, first, rows_);
}

}  // namespace capstan::cli
