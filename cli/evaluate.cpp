#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <numbers>
#include <optional>
#include <string>

#include "cli/commands.hpp"
#include "cli/config_arguments.hpp"
#include "cli/program.hpp"
#include "cli/saved_setup.hpp"
#include "cli/usage_error.hpp"
#include "core/checkpoint/checkpoint.hpp"
#include "core/checkpoint/checkpoint_name.hpp"
#include "core/compression/removal_record.hpp"
#include "core/config/resolve/pretrained.hpp"
#include "core/engine/engine.hpp"
#include "core/errors.hpp"
#include "core/run/load_run.hpp"
#include "core/run/run_data.hpp"
#include "core/run/run_model.hpp"
#include "core/text/numbers.hpp"

namespace capstan::cli {
namespace {

/// Perplexity and bits a byte of a language model, by the mean loss of a token; empty for another model. A token takes
/// loss / ln 2 bits, shared out over the bytes that it stands for.
std::string of_language(double loss, bool language_model, const std::optional<double>& bytes_per_token) {
  if (!language_model) return "";
  std::string text = ", perplexity=" + fixed(std::exp(loss), 4);
  if (bytes_per_token) text += ", bits_per_byte=" + fixed(loss / std::numbers::ln2 / *bytes_per_token, 4);
  return text;
}

int evaluate_loaded(const EvalArguments& arguments, const LoadedConfig& loaded) {
  Model model = build_model(loaded);
  const auto dataset = std::make_shared<const Dataset>(
      open_data(loaded.config.run.eval_data_paths, "capstan.data.eval_path", loaded, model));
  const RunData data = run_data(dataset);
  const bool language_model = model.describe().find("vocab_size") != nullptr;
  Engine engine(std::move(model), loaded.config, loaded.plugins, loaded.communicator);
  if (!arguments.checkpoint.empty()) {
    const CheckpointName name = CheckpointName::parse(arguments.checkpoint);
    engine.load_checkpoint(name.dir, tag_named(name.dir, name.tag));
  } else {
    engine.load_weights(arguments.init_from.empty() ? initial_weights(loaded.config) : arguments.init_from);
  }
  Evaluation evaluation(data, loaded.config.batch.micro_batch_size, engine.rank(), engine.world_size());
  const double loss = engine.eval_batch([&] { return evaluation.next(); }, evaluation.own_batches());
  if (engine.rank() > 0) return 0;
  print("step=" + std::to_string(engine.progress().global_steps) + ", eval_loss=" + fixed(loss, 6) + " over " +
        grouped(evaluation.samples()) + " samples of " + grouped(data.sequence_length) + " tokens" +
        of_language(loss, language_model, dataset->bytes_per_token()) + "\n");
  return 0;
}

}  // namespace

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

int evaluate(const EvalArguments& arguments) {
  RunSource source = source_of(for_pruned_weights(arguments.config, arguments.init_from));
  if (!arguments.checkpoint.empty()) add_saved_model(source, arguments.checkpoint);
  LoadedConfig loaded = load_run(source, Purpose::kEvaluation);
  if (arguments.checkpoint.empty() && arguments.init_from.empty() && initial_weights(loaded.config).empty()) {
    throw UsageError(
        "eval: no weights are named. Give --checkpoint DIR[:TAG], --init-from model.safetensors or --model hf:FOLDER.");
  }
  // An evaluation is no part of the run: it leaves the run's metrics alone.
  loaded.config.monitors.clear();
  loaded.config.report.steps_per_print = std::nullopt;
  // Nothing is updated: whatever optimizer, schedule and groups the checkpoint was trained with, it can be evaluated.
  loaded.config.optimizer.reset();
  loaded.config.scheduler.reset();
  loaded.config.optimizer_offload.reset();
  loaded.config.parameter_groups.clear();
  return run_as_one(loaded, [&] { return evaluate_loaded(arguments, loaded); });
}

}  // namespace capstan::cli
