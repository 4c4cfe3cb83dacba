#include "cli/tune/tune_setup.hpp"

#include <algorithm>
#include <charconv>
#include <set>

#include "cli/config_arguments.hpp"
#include "cli/program.hpp"
#include "cli/usage_error.hpp"
#include "core/config/config_document.hpp"
#include "core/config/resolve/command_line_problems.hpp"
#include "core/config/resolve/effective.hpp"
#include "core/config/tools/gpu_verdict.hpp"
#include "core/errors.hpp"
#include "core/log.hpp"

namespace capstan::cli {
namespace {

const std::string kZero = "zero_optimization", kStage = "zero_optimization.stage",
                  kMicro = "train_micro_batch_size_per_gpu", kAccumulation = "gradient_accumulation_steps",
                  kTrain = "train_batch_size", kEnabled = "autotuning.enabled";

/// The document as it is written, with what the command line puts into it; null where it cannot be read, which the
/// reader of configurations says better.
Json raw_document(const ConfigText& text, const ConfigContext& context) {
  Problems ignored;
  Json document = config_document(text, ignored).value_or(Json::object());
  for (const auto& [path, value] : context.overrides) set_path(document, path, value);
  return document;
}

const Json* find_path(const Json& document, std::string_view path) {
  const auto dot = path.find('.');
  const Json* value = document.find(path.substr(0, dot));
  return value && dot != std::string_view::npos ? find_path(*value, path.substr(dot + 1)) : value;
}

std::int64_t whole(const std::string& text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? value : 0;
}

/// "--micro", "--micro=4": where the value of a flag stands among a program's words; none where it has none.
struct FlagPlace {
  std::size_t word;
  bool joined;  // "--micro=4"
};
std::optional<FlagPlace> find_flag(const std::vector<std::string>& words, const std::string& flag) {
  for (std::size_t i = 1; i < words.size(); ++i) {
    if (words[i] == flag && i + 1 < words.size()) return FlagPlace{i + 1, false};
    if (words[i].starts_with(flag + "=")) return FlagPlace{i, true};
  }
  return std::nullopt;
}

std::string stripped(const std::string& text) {
  const auto first = text.find_first_not_of(" \t"), last = text.find_last_not_of(" \t");
  return first == std::string::npos ? "" : text.substr(first, last - first + 1);
}

/// The value of the program's flag that follows a key; empty where none does.
std::string mapped_value(const TuneSetup& setup, const std::string& key) {
  for (const auto& [path, flag] : setup.tuning().arg_mappings) {
    if (stripped(path) != key) continue;
    const auto place = find_flag(setup.program, stripped(flag));
    if (!place) continue;
    const std::string& word = setup.program[place->word];
    return place->joined ? word.substr(word.find('=') + 1) : word;
  }
  return "";
}

/// The word that is the configuration: behind --deepspeed_config, --deepspeed or --config, else the one with ".json".
std::size_t config_place(const std::vector<std::string>& words) {
  for (const char* flag : {"--deepspeed_config", "--deepspeed", "--config"}) {
    const auto place = find_flag(words, flag);
    if (place && !place->joined && words[place->word].find(".json") != std::string::npos) return place->word;
  }
  for (std::size_t i = 1; i < words.size(); ++i) {
    if (words[i].find(".json") != std::string::npos && words[i].find('=') == std::string::npos) return i;
  }
  throw UsageError(
      "tune: the program's arguments name no configuration, a file with '.json' in its name. Give it behind "
      "--deepspeed_config, or as an argument of its own.");
}

void collect_lists(const Json& section, const std::string& path, std::vector<TunedKey>& lists) {
  for (const auto& [name, value] : section.as_object()) {
    const std::string where = path + "." + name;
    if (value.is_object()) collect_lists(value, where, lists);
    if (value.is_array() && value.size() > 0 && where != kStage && !name.ends_with("classes") &&
        where.find("leaf_module") == std::string::npos)
      lists.push_back({where, value.as_array()});
  }
}

std::vector<int> stages_of(const Json* stage) {
  if (stage == nullptr || stage->is_null()) return {0};
  if (stage->is_string() && stage->as_string() == "all") return {0, 1, 2, 3};
  std::set<int> stages;
  const auto add = [&](const Json& value) {
    if (value.is_number()) stages.insert(static_cast<int>(value.as_number()));
  };
  if (stage->is_array()) {
    for (const Json& value : stage->as_array()) add(value);
  } else {
    add(*stage);
  }
  return {stages.begin(), stages.end()};
}

/// Replaces lists by one value each, so that the rest of the configuration can be read and checked.
void flatten(const Json& document, const TuneSetup& setup, ConfigContext& context) {
  for (const TunedKey& list : setup.lists) context.overrides.emplace_back(list.path, list.values.front());
  const Json* stage = find_path(document, kStage);
  if (stage && (stage->is_array() || stage->is_string()) && !setup.stages.empty()) {
    context.overrides.emplace_back(kStage, setup.stages.back());
  }
  const Json* micro = document.find(kMicro);
  const bool one = micro && micro->is_integer();
  if (!one) {
    const Json first = micro && micro->is_array() && micro->size() > 0 ? micro->as_array().front() : Json(1);
    context.overrides.emplace_back(kMicro, first);
  }
  // The other two follow from it, and from the point.
  context.overrides.emplace_back(kTrain, Json());
  const Json* accumulation = document.find(kAccumulation);
  if (accumulation && accumulation->is_string()) context.overrides.emplace_back(kAccumulation, Json());
}

void erase_path(Json& document, std::string_view path) {
  const auto dot = path.find('.');
  if (dot == std::string_view::npos) return document.erase(path);
  if (Json* inner = document.find(path.substr(0, dot)); inner && inner->is_object()) {
    erase_path(*inner, path.substr(dot + 1));
  }
}

/// What would write elsewhere or cost time while a trial measures.
void quieten(Json& document) {
  for (const char* path : {"tensorboard",
                           "wandb",
                           "csv_monitor",
                           "comet",
                           "flops_profiler",
                           "comms_logger",
                           "wall_clock_breakdown",
                           "memory_breakdown",
                           "dump_state",
                           "capstan.monitors",
                           "capstan.run.save_dir",
                           "capstan.run.save_every",
                           "capstan.run.keep",
                           "capstan.run.keep_best",
                           "capstan.run.overwrite",
                           "capstan.run.eval_every",
                           "capstan.run.sample_every",
                           "capstan.run.sample_prompts",
                           "capstan.run.sample_prompts_file",
                           "capstan.run.sample_tokens",
                           "capstan.run.sample_temperature",
                           "capstan.run.sample_top_k",
                           "capstan.run.sample_top_p",
                           "capstan.run.sample_tokenizer",
                           "capstan.run.patience",
                           "capstan.data.eval_path",
                           "capstan.tuner"}) {
    erase_path(document, path);
  }
  document["steps_per_print"] = Json();
}

Json base_document(const TuneSetup& setup) {
  Json document = setup.config.document;
  document.erase("autotuning");
  return document;
}

void set_batch(const TuneSetup& setup, std::int64_t micro, std::int64_t accumulation, Json& document) {
  if (setup.elastic) return;
  document[kMicro] = micro;
  document[kAccumulation] = accumulation;
  document[kTrain] = micro * accumulation * setup.processes;
}

Json& trial_section(const TuneSetup& setup, Json& document) {
  Json& section = document["autotuning"] = Json::object();
  section["enabled"] = true;
  section["start_profile_step"] = setup.tuning().start_profile_step;
  section["end_profile_step"] = setup.tuning().end_profile_step;
  return section;
}

void require_flags(const AutotuningConfig& tuning) {
  for (const auto& [path, flag] : tuning.arg_mappings) {
    if (stripped(flag).starts_with('-')) continue;
    throw ConfigError(std::string("autotuning.arg_mappings") + "." + stripped(path) + ": '" + flag +
                      "' is not a flag of a program. Write it with its dashes, \"--micro\" for instance.");
  }
}

/// Whoever runs this command wants to tune, whatever the file says; the command line may still contradict itself.
void require_enabled(const TuneSetup& setup) {
  if (setup.tuning().enabled) return;
  throw ConfigError("command line: autotuning.enabled: is false, and 'capstan tune' tunes. Leave it out.");
}

void say_what_is_replaced(const Json& document, const TuneSetup& setup, const std::string& source) {
  if (setup.train_batch) {
    log::info(source + ": train_batch_size: " + std::to_string(*setup.train_batch) +
              " is not kept: the search chooses the batch too, and the configuration that it finds trains with its own "
              "train_batch_size. autotuning.max_train_batch_size bounds it.");
  }
  if (!document.find("autotuning")) {
    log::info(source + ": has no section autotuning; the defaults of its keys say what is searched.");
  } else if (const Json* enabled = find_path(document, kEnabled); enabled && *enabled == Json(false)) {
    log::info(source + ": autotuning.enabled: is false, and is taken as true: 'capstan tune' tunes.");
  }
}

}  // namespace

TuneSetup tune_setup(const TuneArguments& arguments) {
  TuneSetup setup;
  setup.processes = arguments.processes;
  setup.program = arguments.program;
  ConfigArguments reading = arguments.config;
  if (!setup.program.empty()) {
    setup.config_word = config_place(setup.program);
    reading.file = setup.program[setup.config_word];
  }
  setup.train_options = reading_options(arguments.config);
  const ConfigText text = config_text(reading);
  ConfigContext context = config_context(reading);
  context.world_size = arguments.processes;
  context.world_size_origin = "-n";
  context.check_only = true;
  context.takes_steps = false;
  const Json document = raw_document(text, context);
  if (const Json* zero = document.find(kZero); zero && zero->is_object()) collect_lists(*zero, kZero, setup.lists);
  setup.stages = stages_of(find_path(document, kStage));
  const Json* micro = document.find(kMicro);
  if (micro && micro->is_array()) {
    setup.micro_batches.emplace();
    for (const Json& value : micro->as_array()) {
      if (value.is_integer() && value.as_integer() > 0) setup.micro_batches->push_back(value.as_integer());
    }
  }
  const bool given = micro && micro->is_integer();
  const Json* accumulation = document.find(kAccumulation);
  const Json* elastic = find_path(document, "elasticity.enabled");
  setup.elastic = elastic && elastic->is_bool() && elastic->as_bool();
  const Json* train = document.find(kTrain);
  // What the default configuration says is not the user's.
  const bool is_named = !reading.file.empty();
  if (is_named && !setup.elastic && train && train->is_integer()) setup.train_batch = train->as_integer();
  if (is_named) say_what_is_replaced(document, setup, text.source);
  context.overrides.emplace(context.overrides.begin(), kEnabled, true);
  if (!setup.elastic) flatten(document, setup, context);
  setup.config = load_config(text, context, setup.plugins);
  require_enabled(setup);
  if (const auto notice = refused_on_gpus(text, context, setup.config, setup.plugins)) {
    log::info(shown(*notice, text, context));
  }
  require_flags(setup.tuning());
  if (setup.elastic) setup.micro_batches = std::vector<std::int64_t>{setup.config.batch.micro_batch_size};
  if (setup.tuning().mp_size != 1) {
    throw ConfigError("autotuning.mp_size: is " + std::to_string(setup.tuning().mp_size) +
                      ", and this release spreads no model over several processes. Leave the key out.");
  }
  const std::int64_t mapped = whole(mapped_value(setup, kMicro)), flag = whole(mapped_value(setup, kAccumulation));
  setup.first_micro_batch = given ? micro->as_integer() : mapped > 0 ? mapped : 1;
  setup.accumulation = accumulation && accumulation->is_integer() ? accumulation->as_integer() : flag > 0 ? flag : 1;
  if (setup.elastic) setup.accumulation = setup.config.batch.gradient_accumulation_steps;
  return setup;
}

Json point_document(const TuneSetup& setup, const TuningPoint& point) {
  Json document = base_document(setup);
  set_path(document, kStage, point.stage);
  for (const auto& [path, value] : point.values) {
    if (value.is_null()) {
      erase_path(document, path);
    } else {
      set_path(document, path, value);
    }
  }
  set_batch(setup, point.micro_batch, point.accumulation, document);
  return document;
}

Json trial_document(const TuneSetup& setup, const TuningPoint& point, const std::filesystem::path& folder) {
  Json document = point_document(setup, point);
  quieten(document);
  if (setup.program.empty()) set_path(document, "capstan.run.steps", setup.tuning().end_profile_step + 1);
  trial_section(setup, document)["metric_path"] = (folder / "metrics.json").string();
  if (setup.tuning().metric != "FLOPS") return document;
  // One step before those that are measured, which profiling would slow down.
  Json params = Json::object();
  params["profile_step"] = std::max<std::int64_t>(0, setup.tuning().start_profile_step - 1);
  params["peak_tflops"] = 1;  // given, it need not be measured, which takes time
  params["output_file"] = (folder / "profile.txt").string();
  params["json_file"] = (folder / "profile.json").string();
  Json profiler = Json::object();
  profiler["type"] = "flops_profiler";
  profiler["params"] = std::move(params);
  Json& observers = document["capstan"]["observers"];
  if (!observers.is_array()) observers = Json::array();
  observers.push_back(std::move(profiler));
  return document;
}

Json profile_document(const TuneSetup& setup, std::int64_t micro_batch, const std::filesystem::path& folder) {
  Json document = base_document(setup);
  quieten(document);
  set_path(document, kStage, 3);
  set_batch(setup, micro_batch, 1, document);
  Json& section = trial_section(setup, document);
  section["model_info"] = Json::object();
  section["model_info"]["profile"] = true;
  section["model_info_path"] = (folder / "model_info.json").string();
  return document;
}

std::vector<std::string> command_words(const TuneSetup& setup, const std::string& config_file, const Json& document) {
  std::vector<std::string> words;
  if (setup.processes > 1 || !setup.program.empty()) {
    words = {(install_prefix() / "bin/capstan").string(), "launch", "-n", std::to_string(setup.processes)};
  } else {
    words = {(install_prefix() / "bin/capstan").string()};
  }
  if (setup.program.empty()) {
    words.insert(words.end(), {"train", "--no-progress", "--config", config_file});
    words.insert(words.end(), setup.train_options.begin(), setup.train_options.end());
    return words;
  }
  std::vector<std::string> program = setup.program;
  program[setup.config_word] = config_file;
  for (const auto& [path, flag] : setup.tuning().arg_mappings) {
    const Json* value = find_path(document, stripped(path));
    if (value == nullptr || value->is_null() || (value->is_string() && value->as_string() == "auto")) continue;
    const std::string text = value->is_string() ? value->as_string() : value->dump(), name = stripped(flag);
    if (const auto place = find_flag(program, name)) {
      program[place->word] = place->joined ? name + "=" + text : text;
    } else {
      program.insert(program.end(), {name, text});
    }
  }
  words.insert(words.end(), program.begin(), program.end());
  return words;
}

std::string shell_text(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) {
    constexpr const char* kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./:,@%";
    std::string quoted = word;
    if (word.empty() || word.find_first_not_of(kPlain) != std::string::npos) {
      quoted = "'";
      for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
      quoted += "'";
    }
    text += (text.empty() ? "" : " ") + quoted;
  }
  return text;
}

}  // namespace capstan::cli
