#include "cli/trained_model.hpp"

#include <filesystem>
#include <fstream>
#include <iterator>

#include "cli/config_arguments.hpp"
#include "cli/saved_setup.hpp"
#include "cli/usage_error.hpp"
#include "core/checkpoint/checkpoint.hpp"
#include "core/checkpoint/checkpoint_name.hpp"
#include "core/compression/removal_record.hpp"
#include "core/config/resolve/pretrained.hpp"
#include "core/errors.hpp"
#include "core/keep/mapped_weights.hpp"
#include "core/run/load_run.hpp"

namespace capstan::cli {
namespace {

/// Weights that were exported pruned have their shapes, and nothing is left to compress: what compression.json says of
/// the model wins over the configuration, which still describes the training.
ConfigArguments for_pruned_weights(ConfigArguments arguments, const std::string& weights) {
  std::error_code error;
  const std::filesystem::path record = removal_record_of(weights);
  if (weights.empty() || !std::filesystem::exists(record, error)) return arguments;
  try {
    std::ifstream file(record);
    const Json model = Json::parse(std::string(std::istreambuf_iterator<char>(file), {})).at("model");
    arguments.overrides.emplace_back("capstan.model.type", model.at("type"));
    for (const auto& [name, value] : model.at("params").as_object()) {
      arguments.overrides.emplace_back("capstan.model.params." + name, value);
    }
  } catch (const std::exception& fault) {
    throw RuntimeFault(record.string() + ": cannot be read: " + fault.what() +
                       ". Export the weights again, or remove it and give the model's parameters yourself.");
  }
  arguments.overrides.emplace_back("compression_training", Json::object());
  return arguments;
}

}  // namespace

LoadedConfig load_to_evaluate(const ConfigArguments& arguments, const TrainedWeights& weights,
                              const std::string& none_named) {
  RunSource source = source_of(for_pruned_weights(arguments, weights.init_from));
  if (!weights.checkpoint.empty()) add_saved_model(source, weights.checkpoint);
  LoadedConfig loaded = load_run(source, Purpose::kEvaluation);
  if (weights.checkpoint.empty() && weights_file(weights, loaded).empty()) throw UsageError(none_named);
  // The command is no part of the run: it leaves the run's metrics alone.
  loaded.config.monitors.clear();
  loaded.config.report.steps_per_print = std::nullopt;
  // Nothing is updated: whatever optimizer, schedule and groups the checkpoint was trained with, its model computes.
  loaded.config.optimizer.reset();
  loaded.config.scheduler.reset();
  loaded.config.optimizer_offload.reset();
  loaded.config.parameter_groups.clear();
  return loaded;
}

std::string weights_file(const TrainedWeights& weights, const LoadedConfig& loaded) {
  return weights.init_from.empty() ? initial_weights(loaded.config) : weights.init_from;
}

void take_weights(Engine& engine, const TrainedWeights& weights, const LoadedConfig& loaded) {
  if (weights.checkpoint.empty()) {
    // The command only reads them.
    leave_weights_in_files();
    engine.load_weights(weights_file(weights, loaded));
    return;
  }
  const CheckpointName name = CheckpointName::parse(weights.checkpoint);
  engine.load_checkpoint(name.dir, tag_named(name.dir, name.tag));
}

}  // namespace capstan::cli
