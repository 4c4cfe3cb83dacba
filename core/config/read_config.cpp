#include <algorithm>
#include <utility>

#include "core/config/config.hpp"
#include "core/config/config_document.hpp"
#include "core/config/language/accelerate.hpp"
#include "core/config/language/misspelt_sections.hpp"
#include "core/config/language/old_names.hpp"
#include "core/config/language/unknown_keys.hpp"
#include "core/config/language/validator.hpp"
#include "core/config/resolve/autos.hpp"
#include "core/config/resolve/batch_sizes.hpp"
#include "core/config/resolve/command_line_problems.hpp"
#include "core/config/resolve/components.hpp"
#include "core/config/resolve/device.hpp"
#include "core/config/resolve/effective.hpp"
#include "core/config/resolve/elastic.hpp"
#include "core/config/resolve/missing.hpp"
#include "core/config/resolve/pretrained.hpp"
#include "core/config/resolve/program_values.hpp"
#include "core/config/rules/rules.hpp"
#include "core/config/rules/section_rules.hpp"
#include "core/config/typed/typed_sections.hpp"
#include "core/errors.hpp"
#include "core/log.hpp"
#include "core/pretrained/model_source.hpp"
#include "core/schema/value.hpp"
#include "core/text/places.hpp"
#include "core/text/relaxed.hpp"
#include "core/text/toml.hpp"
#include "core/text/yaml.hpp"

namespace capstan {
namespace {

struct Extent {
  std::size_t depth = 1, values = 1;
};

Extent extent(const Json& value) {
  Extent all;
  const auto add = [&](const Json& inner, std::size_t keys) {
    const Extent one = extent(inner);
    all.depth = std::max(all.depth, one.depth + 1);
    all.values += one.values + keys;
  };
  if (value.is_array()) {
    for (const Json& item : value.as_array()) add(item, 0);
  } else if (value.is_object()) {
    for (const auto& [key, member] : value.as_object()) add(member, 1);
  }
  return all;
}

/// Takes "<source>:<line>:<column>: " off a TOML error.
Problem toml_problem(const std::string& text, const std::string& source) {
  Problem problem{Problem::Severity::kError, "", text};
  if (!text.starts_with(source + ":")) return problem;
  const char* at = text.c_str() + source.size() + 1;
  char* end = nullptr;
  problem.line = static_cast<int>(std::strtol(at, &end, 10));
  if (*end == ':') problem.column = static_cast<int>(std::strtol(end + 1, &end, 10));
  if (end[0] == ':' && end[1] == ' ') problem.message = end + 2;
  return problem;
}

std::optional<Json> toml_document(const ConfigText& text, Problems& problems) {
  if (text.text.size() > kLargestText) {
    problems.error("", "larger than 16 MiB; a configuration has a few kilobytes.");
    return std::nullopt;
  }
  try {
    Json document = parse_toml(text.text, text.source);
    const Extent size = extent(document);
    if (size.depth <= kDeepestNesting && size.values <= kMostValues) return document;
    problems.error("",
                   size.depth > kDeepestNesting
                       ? "nested deeper than " + std::to_string(kDeepestNesting) + " levels."
                       : "more than " + std::to_string(kMostValues) + " values; a configuration has a few hundred.");
  } catch (const ConfigError& error) {
    problems.all().push_back(toml_problem(error.what(), text.source));
  }
  return std::nullopt;
}

/// "capstan.model": "gpt:tiny" is short for the type gpt with {"size": "tiny"}; "hf:FOLDER" and "FILE.gguf" are types
/// that resolve_pretrained() replaces.
void expand_model(Json& document) {
  Json* section = document.find("capstan");
  Json* model = section ? section->find("model") : nullptr;
  if (!model || !model->is_string()) return;
  const std::string text = model->as_string();
  const auto offset = model->offset();
  const auto colon = pretrained_path(text) ? std::string::npos : text.find(':');
  Json made = Json::object();
  made["type"] = text.substr(0, colon);
  made["params"] = Json::object();
  if (colon != std::string::npos) made["params"]["size"] = text.substr(colon + 1);
  *model = std::move(made);
  if (offset) model->set_offset(*offset);
}

std::vector<std::pair<std::filesystem::path, std::string>> plugin_folders(const Json& document,
                                                                          const ConfigContext& context) {
  std::vector<std::pair<std::filesystem::path, std::string>> folders;
  for (const auto& path : context.plugin_paths) folders.emplace_back(path, "--plugin-path");
  const Json* section = document.find("capstan");
  const Json* plugins = section ? section->find("plugins") : nullptr;
  const Json* path = plugins ? plugins->find("path") : nullptr;
  if (!path) return folders;
  if (path->is_string()) folders.emplace_back(path->as_string(), "capstan.plugins.path");
  if (path->is_array()) {
    for (const Json& item : path->as_array()) {
      if (item.is_string()) folders.emplace_back(item.as_string(), "capstan.plugins.path");
    }
  }
  return folders;
}

std::vector<std::string> foreign_sections(const PluginIndex& plugins) {
  std::vector<std::string> names;
  for (const auto& plugin : plugins.plugins()) {
    for (const auto& component : plugin.manifest.components) {
      if (!component.section.empty() && !language().member(component.section)) names.push_back(component.section);
    }
  }
  return names;
}

std::vector<std::string> strings(const Json* list) {
  std::vector<std::string> out;
  if (!list || !list->is_array()) return out;
  for (const Json& item : list->as_array()) {
    if (item.is_string()) out.push_back(item.as_string());
  }
  return out;
}

SampleConfig sample_settings(const Effective& values) {
  SampleConfig sample;
  sample.every = values.integer("capstan.run.sample_every");
  const Effective unused = values.unconsumed();
  const Effective& used = sample.every > 0 ? values : unused;
  sample.prompts = strings(used.find("capstan.run.sample_prompts"));
  sample.prompts_file = used.text("capstan.run.sample_prompts_file");
  sample.tokens = used.integer("capstan.run.sample_tokens");
  sample.temperature = used.number("capstan.run.sample_temperature");
  const Effective& drawing = sample.temperature > 0 ? used : unused;
  sample.top_k = drawing.integer("capstan.run.sample_top_k");
  sample.top_p = drawing.number("capstan.run.sample_top_p");
  sample.tokenizer = used.text("capstan.run.sample_tokenizer");
  return sample;
}

RunConfig run_settings(const Effective& values) {
  RunConfig run;
  run.data_paths = strings(values.find("capstan.data.path"));
  run.eval_data_paths = strings(values.find("capstan.data.eval_path"));
  run.teacher = values.text("capstan.teacher.path");
  if (values.find("capstan.data.sequence_length")) run.sequence_length = values.integer("capstan.data.sequence_length");
  run.shuffle = values.flag("capstan.data.shuffle");
  run.seed = static_cast<std::uint64_t>(values.integer("capstan.run.seed"));
  if (values.find("capstan.run.steps")) run.steps = values.integer("capstan.run.steps");
  run.save_dir = values.text("capstan.run.save_dir");
  const Effective unused = values.unconsumed();
  const Effective& saving = run.save_dir.empty() ? unused : values;
  run.save_every = saving.integer("capstan.run.save_every");
  run.keep = saving.integer("capstan.run.keep");
  run.overwrite = saving.flag("capstan.run.overwrite");
  const Effective& evaluating = run.eval_data_paths.empty() ? unused : values;
  run.eval_every = evaluating.integer("capstan.run.eval_every");
  run.keep_best = (run.save_dir.empty() ? unused : evaluating).flag("capstan.run.keep_best");
  run.patience = evaluating.integer("capstan.run.patience");
  run.sample = sample_settings(values);
  run.loss_chunk = values.integer("capstan.run.loss_chunk");
  run.on_nan = values.text("capstan.run.on_nan");
  run.on_monitor_failure = values.text("capstan.run.on_monitor_failure");
  run.on_mismatch = values.text("capstan.run.on_mismatch");
  run.elastic = {values.integer("capstan.elastic.every"), values.number("capstan.elastic.overhead"),
                 values.number("capstan.elastic.wait"), values.integer("capstan.elastic.partners")};
  return run;
}

void check_sha256(const Effective& values, Config& config, Problems& problems) {
  const Json* sums = values.find("capstan.plugins.sha256");
  if (!sums || !sums->is_object()) return;
  for (const auto& [file, sum] : sums->as_object()) {
    const bool right = sum.is_string() && sum.as_string().size() == 64 &&
                       sum.as_string().find_first_not_of("0123456789abcdefABCDEF") == std::string::npos;
    if (!right) {
      problems.error("capstan.plugins.sha256." + file, "must be 64 hexadecimal digits, got " + shown(sum) + ".");
    } else {
      config.plugin_sha256[file] = sum.as_string();
    }
  }
}

/// Leaves the folders that were searched in the first message that names them.
void say_folders_once(const PluginIndex& plugins, Problems& problems) {
  const std::string searched = plugins.searched_text();
  bool said = false;
  for (Problem& problem : problems.all()) {
    const auto at = problem.message.find(searched);
    if (at == std::string::npos) continue;
    if (said) problem.message.erase(at, searched.size());
    said = true;
  }
}

/// A value of a wrong type counts as absent afterwards: what it should be has been reported then.
void report_refused_once(Problems& problems) {
  const auto is_missing = [](const Problem& problem) { return problem.message.starts_with("is missing; "); };
  std::set<std::string> refused;
  for (const Problem& problem : problems.all()) {
    if (problem.severity == Problem::Severity::kError && !is_missing(problem)) refused.insert(problem.path);
  }
  std::erase_if(problems.all(),
                [&](const Problem& problem) { return is_missing(problem) && refused.contains(problem.path); });
}

/// Reads one document that is already parsed.
class Reader {
 public:
  Reader(const ConfigText& text, const ConfigContext& context, const PluginIndex& plugins, Problems& problems)
      : text_(text), context_(context), plugins_(plugins), problems_(problems) {}

  std::optional<Config> read(Json document) {
    PathPlaces places;
    places.add(document);
    expand_model(document);
    resolve_pretrained(document, plugins_, problems_);
    const bool warns = context_.lenient || unknown_keys_warn(document);
    // Where an unknown key has no effect, neither has what it holds.
    std::vector<UnknownKey> misspelt;
    if (!warns) misspelt = correct_section_names(document, foreign_sections(plugins_));
    replace_old_names(document, problems_);
    places.add(document);
    const Json as_written = document;
    apply_program_values(document, context_, problems_);

    ValidatorOptions options;
    options.hidden_size = context_.hidden_size;
    options.tuning = autotunes(document);
    options.foreign_sections = foreign_sections(plugins_);
    Validated validated = validate(document, options, problems_);
    Effective values(validated.effective, validated.origins, context_.consumed);

    Config config;
    config.source = text_.source;
    fill(config, document, values, validated);
    validated.unknown.insert(validated.unknown.begin(), misspelt.begin(), misspelt.end());
    report_rest(values.unconsumed(), config, validated);
    report_unknown_keys(validated.unknown, document, plugins_, {.warn = warns, .strict = context_.strict}, problems_);
    mark_overrides(validated.origins);
    mark_program_values(context_, as_written, validated.origins);
    config.document = std::move(document);
    config.effective = std::move(validated.effective);
    config.origins = std::move(validated.origins);
    report_refused_once(problems_);
    places.locate(problems_, TextPlaces(text_.text));
    say_folders_once(plugins_, problems_);
    return problems_.has_errors() ? std::nullopt : std::optional(std::move(config));
  }

 private:
  /// A value of the document as it is written; null when it is not given.
  static const Json* written(const Json& document, std::string_view path) {
    const std::size_t dot = path.find('.');
    const Json* value = document.find(path.substr(0, dot));
    return value && dot != std::string_view::npos ? written(*value, path.substr(dot + 1)) : value;
  }

  static bool unknown_keys_warn(const Json& document) {
    const Json* choice = written(document, "capstan.unknown_keys");
    return choice && *choice == Json("warn");
  }

  static bool autotunes(const Json& document) {
    const Json* enabled = written(document, "autotuning.enabled");
    return enabled && enabled->is_bool() && enabled->as_bool();
  }

  void fill(Config& config, const Json& document, Effective& values, Validated& validated) {
    config.device = resolve_device(values, plugins_, context_.check_only, problems_);
    const std::string builds = device_of_builds(config.device, plugins_);
    ComponentChooser chooser(plugins_, builds, document, values, validated, problems_);
    config.optimizer = chooser.optimizer();
    config.scheduler = chooser.scheduler(config.optimizer);
    Effective unconsumed = values.unconsumed();
    derive_values(unconsumed, problems_);
    settle_contiguous_memory(unconsumed, problems_);
    if (const ComponentRef found = config.optimizer
                                       ? plugins_.find("optimizer", config.optimizer->type, config.optimizer->device)
                                       : ComponentRef{}) {
      keep_gradients_whole(unconsumed, *found.component, problems_);
      widen_buffers(unconsumed, config, *found.component);
    }
    // Without the elastic batch there is nothing to complete.
    const bool elastic = values.flag("elasticity.enabled");
    const bool made = check_elasticity_rules(unconsumed, problems_) && apply_elasticity(values, context_, problems_);
    if (!elastic || made) {
      config.batch = resolve_batch(values, context_, problems_);
    } else {
      config.batch.world_size = data_parallel_size(values, context_);
    }
    config.precision = resolve_precision(values, problems_);
    read_typed_sections(SectionValues(&validated.effective), config);
    // null: never printed, where an absent key has its default.
    if (const Json* steps = values.find("steps_per_print"); !steps || steps->is_null())
      config.report.steps_per_print.reset();
    // "auto" is a word on the matter too, and is reported as such.
    const Json* clipping = document.find("gradient_clipping");
    config.gradient_clipping_given = clipping && !clipping->is_null();
    config.run = run_settings(values);
    config.run.model = chooser.model();
    // initial_weights() gives it to whoever starts the model.
    if (config.run.model) values.consume("capstan.model.weights");
    config.run.dataset = chooser.dataset();
    config.run.sampler = chooser.sampler();
    config.run.pacing = chooser.pacing();
    config.tuner = chooser.tuner();
    config.optimizer_offload = chooser.optimizer_offload();
    config.parameter_offload = chooser.parameter_offload();
    config.activation_offload = chooser.activation_offload();
    config.attention = chooser.attention();
    if (config.attention) config.attention_kernel = chooser.attention_kernel();
    if (values.integer("zero_optimization.stage", 3) < 3) config.zero.offload_param.reset();
    if (config.parameter_offload) bound_read_ahead(config.zero);
    // One process holds everything, so that every stage is stage 0, unless parameters are elsewhere.
    if (config.batch.world_size <= 1 && !config.parameter_offload) config.zero.stage = 0;
    config.parameter_groups = chooser.parameter_groups(config.optimizer);
    config.corrections = strings(values.find("capstan.corrections"));
    chooser.sections({config.monitors, config.observers, config.compressions, config.run.sampler});
    update_where_compressions_work(config, plugins_, problems_);
    check_sha256(values, config, problems_);
    report_missing(unconsumed, config, context_, problems_);
  }

  void report_rest(const Effective& values, const Config& config, const Validated& validated) {
    check_rules(values, config, plugins_, problems_);
    check_tuning(values, config, context_, problems_);
    check_device(config, plugins_, problems_);
    check_storage(values, config, context_.check_only, problems_);
    if (context_.says_autos) report_autos(validated.autos, context_, problems_);
    report_idle_keys(values, config, context_, plugins_, problems_);
  }

  void mark_overrides(std::map<std::string, std::string>& origins) const {
    for (const auto& [path, value] : context_.overrides) {
      for (auto& [key, origin] : origins) {
        const bool below =
            key == path || (key.starts_with(path) && (key[path.size()] == '.' || key[path.size()] == '['));
        if (below && origin == "file") origin = "command line";
      }
    }
  }

  const ConfigText& text_;
  const ConfigContext& context_;
  const PluginIndex& plugins_;
  Problems& problems_;
};

/// True when a value that is put at a path stays within the depth of a document.
bool fits(std::string_view path, const Json& value, Problems& problems) {
  const auto levels = static_cast<std::size_t>(std::count(path.begin(), path.end(), '.')) + 1;
  if (levels < kDeepestNesting && levels + extent(value).depth <= kDeepestNesting) return true;
  problems.error(std::string(path.substr(0, path.find('.'))),
                 "nested deeper than " + std::to_string(kDeepestNesting) + " levels.");
  return false;
}

}  // namespace

std::optional<Json> config_document(const ConfigText& text, Problems& problems) {
  if (text.toml) return toml_document(text, problems);
  auto document = looks_like_yaml(text.text) ? parse_yaml(text.text, problems) : parse_relaxed(text.text, problems);
  return document ? read_accelerate(std::move(*document), problems) : std::nullopt;
}

std::optional<Json> overridden_document(const ConfigText& text, const ConfigContext& context, Problems& problems) {
  auto document = config_document(text, problems);
  if (!document) return document;
  constexpr std::string_view kModelKeys = "capstan.model.";
  for (const auto& [path, value] : context.overrides) {
    if (!path.starts_with(kModelKeys) && fits(path, value, problems)) set_path(*document, path, value);
  }
  // What is said of a model stands beside its type, in whatever order the command line has them.
  expand_model(*document);
  for (const auto& [path, value] : context.overrides) {
    if (path.starts_with(kModelKeys) && fits(path, value, problems)) set_path(*document, path, value);
  }
  return document;
}

ConfigReading read_config(const ConfigText& text, const ConfigContext& context) {
  ConfigReading reading;
  auto document = overridden_document(text, context, reading.problems);
  if (!document) return reading;
  reading.plugins = PluginIndex::scan(plugin_folders(*document, context));
  reading.config = Reader(text, context, reading.plugins, reading.problems).read(std::move(*document));
  return reading;
}

ConfigReading read_config(const ConfigText& text, const ConfigContext& context, const PluginIndex& plugins) {
  ConfigReading reading;
  reading.plugins = plugins;
  auto document = overridden_document(text, context, reading.problems);
  if (document) reading.config = Reader(text, context, plugins, reading.problems).read(std::move(*document));
  return reading;
}

Config load_config(const ConfigText& text, const ConfigContext& context, PluginIndex& plugins) {
  ConfigReading reading = read_config(text, context);
  std::string errors;
  for (const Problem& problem : reading.problems.all()) {
    const std::string line = shown(problem, text, context);
    switch (problem.severity) {
      case Problem::Severity::kError:
        errors += (errors.empty() ? "" : "\n") + line;
        break;
      case Problem::Severity::kWarning:
        log::warning(line);
        break;
      case Problem::Severity::kNotice:
        log::info("notice: " + line);
        break;
    }
  }
  plugins = std::move(reading.plugins);
  if (!reading.config) throw ConfigError(errors);
  return std::move(*reading.config);
}

Config read_elastic_config(const ConfigText& text, ConfigContext context) {
  context.check_only = true;
  context.world_known = false;
  ConfigReading reading = read_config(text, context);
  std::string errors;
  for (const Problem& problem : reading.problems.all()) {
    if (problem.severity == Problem::Severity::kError)
      errors += (errors.empty() ? "" : "\n") + shown(problem, text, context);
  }
  if (!reading.config) throw ConfigError(errors);
  if (!reading.config->elasticity.enabled) {
    throw ConfigError(
        text.source +
        ": elasticity.enabled: must be true for an elastic batch; the section is absent or off. An example of "
        "it: \"elasticity\": {\"enabled\": true, \"max_train_batch_size\": 512, \"micro_batch_sizes\": "
        "[2, 4, 8], \"version\": 0.1}; train_batch_size and its like are then left out.");
  }
  return *reading.config;
}

}  // namespace capstan
