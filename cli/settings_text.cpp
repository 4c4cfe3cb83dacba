#include "cli/settings_text.hpp"

#include <map>
#include <set>
#include <vector>

#include "core/text/numbers.hpp"
#include "core/text/table.hpp"
#include "core/version.hpp"

namespace capstan::cli {
namespace {

using Row = std::pair<std::string, std::string>;

/// " (command line)" and the like; nothing for what stands in the file, which surprises nobody.
std::string origin_note(const Config& config, const std::string& path) {
  const auto found = config.origins.find(path);
  return found == config.origins.end() || found->second == "file" ? "" : " (" + found->second + ")";
}

std::string value_text(const Json& value) { return value.is_string() ? value.as_string() : value.dump(); }

/// "AdamW: lr 0.001, betas [0.9,0.95]": what was given, and a rate that nobody gave; `dump_state` prints the rest.
std::string component_text(const Config& config, const ComponentChoice& choice, const std::string& params_path) {
  std::vector<std::string> given;
  for (const auto& [name, value] : choice.params.as_object()) {
    const std::string path = params_path + "." + name;
    const auto origin = config.origins.find(path);
    const bool is_default = origin == config.origins.end() || origin->second == "default";
    if (value.is_null() || (is_default && name != "lr")) continue;
    given.push_back(name + " " + value_text(value) + origin_note(config, path));
  }
  return choice.type + (given.empty() ? "" : ": " + joined(given));
}

std::string precision_text(const PrecisionConfig& precision) {
  static const std::map<Precision, std::string> kNames = {
      {Precision::kFp32, "fp32"}, {Precision::kBf16, "bf16"}, {Precision::kFp16, "fp16"}};
  std::string text = kNames.at(precision.compute);
  std::vector<std::string> with;
  if (precision.low_precision_masters) {
    const std::string moments = precision.low_precision_states ? " and moments" : "";
    const std::string at_random = precision.stochastic_rounding ? " rounded at random" : "";
    with.push_back("master weights" + moments + " of 16 bits" + at_random);
  } else if (precision.compute != Precision::kFp32 && precision.fp32_masters) {
    with.push_back("fp32 master weights");
  }
  if (!precision.autocast_dtype.empty()) with.push_back("autocast to " + precision.autocast_dtype);
  if (precision.scales_loss) {
    with.push_back(precision.loss_scale > 0 ? "loss scale " + short_number(precision.loss_scale)
                                            : "a dynamic loss scale");
  }
  for (std::size_t i = 0; i < with.size(); ++i) {
    text += (i == 0 ? ", with " : i + 1 == with.size() ? " and " : ", ") + with[i];
  }
  return text;
}

/// What the stage spreads over the processes; one process runs every stage as stage 0.
std::string zero_text(const Config& config) {
  static const char* const kPartitioned[] = {"nothing is partitioned", "the optimizer state is partitioned",
                                             "optimizer state and gradients are partitioned",
                                             "optimizer state, gradients and parameters are partitioned"};
  const int stage = config.zero.stage;
  const Json* section = config.effective.find("zero_optimization");
  const std::int64_t configured = section ? section->at("stage").as_integer() : 0;
  return "stage " + std::to_string(stage) + ": " + kPartitioned[stage] +
         (configured == stage ? "" : " (stage " + std::to_string(configured) + " is configured, for one process)");
}

std::string model_text(const Config& config, const Model& model) {
  std::int64_t elements = 0;
  for (const NamedTensor& parameter : model.parameters()) elements += parameter.tensor.numel();
  std::vector<std::string> given;
  for (const auto& [name, value] : config.run.model->params.as_object()) {
    // The contents of a config.json would fill the screen.
    const Json* model_type = value.find("model_type");
    const std::string text = model_type != nullptr ? "of " + value_text(*model_type) : value_text(value);
    if (!value.is_null()) given.push_back(name + " " + text);
  }
  return model.description() + (given.empty() ? "" : " (" + joined(given) + ")") + ", " + grouped(elements) +
         " parameters in " + std::to_string(model.parameters().size()) + " tensors";
}

std::string batch_text(const Config& config) {
  const BatchConfig& batch = config.batch;
  const auto note = [&](const char* key) { return origin_note(config, key); };
  return std::to_string(batch.train_batch_size) + note("train_batch_size") + " = micro-batch " +
         std::to_string(batch.micro_batch_size) + note("train_micro_batch_size_per_gpu") + " x accumulation " +
         std::to_string(batch.gradient_accumulation_steps) + note("gradient_accumulation_steps") + " x " +
         std::to_string(batch.world_size) + (batch.world_size == 1 ? " process" : " processes");
}

std::string clipping_text(const Config& config) {
  if (config.gradient_clipping <= 0) return "off" + origin_note(config, "gradient_clipping");
  return short_number(config.gradient_clipping) + (config.gradient_clipping_given
                                                       ? origin_note(config, "gradient_clipping")
                                                       : " (gradient_clipping is not set; DeepSpeed's default)");
}

std::string steps_text(const Config& config, const Dataset& data) {
  const auto steps = config.run.steps.value_or(0);
  const double passes =
      static_cast<double>(steps * config.batch.train_batch_size) / static_cast<double>(data.samples());
  return grouped(steps) + origin_note(config, "capstan.run.steps") + ", " + short_number(passes) +
         " passes over the data";
}

std::string size_text(const Dataset& data) {
  const Json* tokens = data.facts().find("tokens");
  std::string text = tokens && tokens->is_integer() ? grouped(tokens->as_integer()) + " tokens, " : "";
  text += grouped(data.samples()) + " samples";
  return data.sequence_length() > 0 ? text + " of " + grouped(data.sequence_length()) : text;
}

std::string saving_text(const RunConfig& run) {
  if (run.save_dir.empty()) return "none (--save is not given)";
  return run.save_dir +
         (run.save_every ? ", every " + grouped(run.save_every) + " steps and at the end" : ", at the end") +
         (run.keep ? ", the newest " + grouped(run.keep) + " kept" : "") + (run.keep_best ? ", and the best" : "") +
         (run.overwrite ? ", over another run's checkpoints" : "");
}

std::string metrics_text(const Config& config) {
  std::vector<std::string> monitors;
  for (const ComponentChoice& monitor : config.monitors) {
    const Json* path = monitor.params.find("output_path");
    const Json* job = monitor.params.find("job_name");
    const bool folder = path && job && path->is_string() && job->is_string();
    monitors.push_back(monitor.type +
                       (folder ? " in " + (std::filesystem::path(path->as_string()) / job->as_string()).string() : ""));
  }
  return monitors.empty() ? "none" : joined(monitors);
}

std::string plugins_text(const Config& config, const PluginIndex& plugins) {
  std::vector<ComponentChoice> choices = {*config.run.model};
  for (const auto* one :
       {&config.optimizer, &config.scheduler, &config.optimizer_offload, &config.parameter_offload, &config.run.pacing,
        &config.run.sampler, &config.run.dataset, &config.attention, &config.attention_kernel}) {
    if (*one) choices.push_back(**one);
  }
  choices.insert(choices.end(), config.monitors.begin(), config.monitors.end());
  choices.insert(choices.end(), config.observers.begin(), config.observers.end());
  choices.insert(choices.end(), config.compressions.begin(), config.compressions.end());
  std::vector<std::string> texts;
  std::set<const IndexedPlugin*> seen;
  for (const ComponentChoice& choice : choices) {
    const ComponentRef found = plugins.find(choice.kind, choice.type, choice.device);
    if (!found || !seen.insert(found.plugin).second) continue;
    texts.push_back(found.plugin->manifest.name + " " + found.plugin->manifest.version + " (" +
                    found.plugin->file.string() + ")");
  }
  return joined(texts, "\n");
}

/// Rows with their values one below the other; further lines of a value are indented likewise.
std::string rows_text(const std::vector<Row>& rows, const Terminal& terminal) {
  constexpr std::size_t kIndent = 2, kWidth = 15;
  std::string text;
  for (const auto& [name, value] : rows) {
    std::string indented = value;
    for (std::size_t at = indented.find('\n'); at != std::string::npos; at = indented.find('\n', at + 1)) {
      indented.insert(at + 1, kIndent + kWidth, ' ');
    }
    text += std::string(kIndent, ' ') + terminal.dim(name) + std::string(kWidth - name.size(), ' ') + indented + "\n";
  }
  return text;
}

}  // namespace

std::string settings_text(const Config& config, const PluginIndex& plugins, const Model& model, const Dataset& data,
                          const Terminal& terminal) {
  std::vector<Row> rows = {
      {"configuration", config.source},
      {"model", model_text(config, model)},
      {"data", joined(config.run.data_paths) + ": " + size_text(data)},
      {"batch", batch_text(config)},
      {"steps", steps_text(config, data)},
      {"optimizer", config.optimizer ? component_text(config, *config.optimizer, "optimizer.params") : "none"},
      {"scheduler", config.scheduler ? component_text(config, *config.scheduler, "scheduler.params")
                                     : "none: the rate stays as it is"},
      {"clipping", clipping_text(config)},
      {"precision", precision_text(config.precision)},
      {"ZeRO", zero_text(config)},
      {"seed", std::to_string(config.run.seed) + origin_note(config, "capstan.run.seed")},
      {"checkpoints", saving_text(config.run)},
      {"metrics", metrics_text(config)},
      {"plugins", plugins_text(config, plugins)},
  };
  if (!config.run.eval_data_paths.empty()) {
    rows.insert(
        rows.begin() + 3,
        {"evaluation",
         joined(config.run.eval_data_paths) +
             (config.run.eval_every ? ", every " + grouped(config.run.eval_every) + " steps" : "") + " and at the end" +
             (config.run.patience ? ", until " + counted(config.run.patience, "evaluation") + " in a row " +
                                        (config.run.patience == 1 ? "has" : "have") + " no lower loss"
                                  : "")});
  }
  if (const SampleConfig& sample = config.run.sample; sample.every > 0) {
    rows.insert(rows.end() - 3, {"samples", "before the first step, every " + grouped(sample.every) +
                                                " steps and at the end, " + grouped(sample.tokens) + " tokens each"});
  }
  if (config.device != "cpu") rows.insert(rows.begin() + 2, {"device", config.device});
  if (!config.parameter_groups.empty()) {
    rows.insert(rows.end() - 7, {"groups", "by " + std::to_string(config.parameter_groups.size()) +
                                               (config.parameter_groups.size() == 1 ? " rule" : " rules") +
                                               " of capstan.parameter_groups"});
  }
  return terminal.bold(std::string("Capstan ") + version()) + "\n" + rows_text(rows, terminal);
}

}  // namespace capstan::cli
