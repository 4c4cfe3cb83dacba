#include "cli/command_line.hpp"

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <functional>
#include <list>
#include <stdexcept>

#include "cli/help_texts.hpp"
#include "cli/token_formats.hpp"
#include "cli/version.hpp"
#include "core/errors.hpp"
#include "core/registry/plugin_template.hpp"
#include "core/text/nearest.hpp"

namespace capstan::cli {
namespace {

using Words = std::vector<std::string>;

/// The command line cannot be understood; the text says why.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

std::int64_t whole_number(const std::string& option, const std::string& text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    throw UsageError(option + ": '" + text + "' is not a whole number.");
  }
  return value;
}

/// "1500000000", "1500M", "1.5G": powers of ten.
std::int64_t byte_count(const std::string& option, const std::string& text) {
  constexpr std::string_view kUnits = "kMGT";
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  const auto power = unit.empty() ? 0 : kUnits.find(unit.front() == 'K' ? 'k' : unit.front()) + 1;
  const bool known =
      error == std::errc() && (unit.empty() || (power > 0 && (unit.size() == 1 || unit.substr(1) == "B")));
  for (std::size_t i = 0; known && i < power; ++i) value *= 1000;
  if (!known || value < 1 || value > 9e18) {
    throw UsageError(option + ": '" + text + "' is not a number of bytes. Write 1500000000, 1500M or 1.5G.");
  }
  return static_cast<std::int64_t>(value);
}

/// "path=value": the value as JSON where it is some, otherwise as a string.
std::pair<std::string, Json> assignment(const std::string& text) {
  const auto equals = text.find('=');
  if (equals == std::string::npos || equals == 0) {
    throw UsageError("--set: '" + text +
                     "' is not an assignment. Write it as key.path=value, for instance "
                     "optimizer.params.lr=3e-4.");
  }
  const std::string value = text.substr(equals + 1);
  try {
    return {text.substr(0, equals), Json::parse(value)};
  } catch (const ConfigError&) {
    return {text.substr(0, equals), value};
  }
}

/// A word out of `words`; anything else is misuse, with the nearest one named.
void choice_option(CLI::App& app, const std::string& name, std::string& target, const Words& words,
                   const std::string& description, bool required) {
  std::string all;
  for (const std::string& word : words) all += (all.empty() ? "" : "|") + word;
  app.add_option_function<std::string>(
         name,
         [&target, name, words, all](const std::string& given) {
           if (std::find(words.begin(), words.end(), given) == words.end()) {
             throw UsageError(name + ": must be " + all + ", got '" + given + "'." + suggestion(given, words));
           }
           target = given;
         },
         description)
      ->type_name(all)
      ->take_last()
      ->required(required);
}

CLI::Option* text_option(CLI::App& app, const std::string& name, std::string& target, const char* value,
                         const std::string& description) {
  return app.add_option(name, target, description)->type_name(value)->take_last();
}

CLI::Option* flag(CLI::App& app, const std::string& name, bool& target, const std::string& description) {
  return app.add_flag_function(
      name, [&target](std::int64_t) { target = true; }, description);
}

/// A number, 1 or more.
void count_option(CLI::App& app, const std::string& name, int& target, const std::string& description) {
  app.add_option_function<std::string>(
         name,
         [&target, name](const std::string& given) {
           const std::int64_t count = whole_number(name, given);
           if (count < 1 || count > 1'000'000) {
             throw UsageError(name + ": must be 1 to 1,000,000, got " + given + ".");
           }
           target = static_cast<int>(count);
         },
         description)
      ->type_name("N")
      ->take_last();
}

void plugin_path(CLI::App& app, Words& target) {
  app.add_option("--plugin-path", target, "Folder searched for plugins before all others; may be repeated")
      ->type_name("DIR")
      ->expected(1)
      ->allow_extra_args(false)  // what follows may be a program
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

/// Options that stand for keys of the configuration.
class Overrides {
 public:
  Overrides(CLI::App& app, ConfigArguments& config) : app_(app), config_(config) {}

  void text(const char* name, const char* path, const char* value, const char* description) {
    app_.add_option_function<std::string>(
            name, [this, path](const std::string& given) { config_.overrides.emplace_back(path, given); }, description)
        ->type_name(value)
        ->take_last();
  }

  void integer(const char* name, const char* path, const char* description) {
    app_.add_option_function<std::string>(
            name,
            [this, name, path](const std::string& given) {
              config_.overrides.emplace_back(path, whole_number(name, given));
            },
            description)
        ->type_name("N")
        ->take_last();
  }

  void on(const char* name, const char* path, const char* description) {
    app_.add_flag_function(
        name, [this, path](std::int64_t) { config_.overrides.emplace_back(path, true); }, description);
  }

  void list(const char* name, const char* path, const char* description) {
    app_.add_option_function<Words>(
            name,
            [this, path](const Words& given) {
              Json values = Json::array();
              for (const std::string& one : given) values.push_back(one);
              config_.overrides.emplace_back(path, values);
            },
            description)
        ->type_name("PATH");
  }

  /// The options that every command with a configuration has. --set comes last, so that it wins.
  void common() {
    plugin_path(app_, config_.plugin_paths);
    const auto lenient =
        flag(app_, "--lenient", config_.lenient, "Unknown keys of the configuration are warnings, not errors");
    flag(app_, "--strict", config_.strict, "Other programs' options in the configuration are errors, not warnings")
        ->excludes(lenient);
    app_.add_option_function<Words>(
            "--set",
            [this](const Words& given) {
              for (const std::string& one : given) config_.overrides.push_back(assignment(one));
            },
            "Sets any key of the configuration; may be repeated")
        ->type_name("KEY.PATH=VALUE")
        ->expected(1)
        ->allow_extra_args(false)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  }

 private:
  CLI::App& app_;
  ConfigArguments& config_;
};

/// One command: its place in CLI11's tree and what its options fill in.
template <class T>
struct Command {
  CLI::App* app;
  T arguments;
};

void config_option(CLI::App& app, ConfigArguments& config) {
  text_option(app, "--config", config.file, "FILE",
              "Configuration, JSON, TOML or YAML; without it, the default one that comes with Capstan");
}

/// The whole definition. Lives until the arguments were taken: the options write into its members.
class Definition {
 public:
  Definition() : app_(kDescription, "capstan") {
    app_.footer(kExitCodes);
    app_.require_subcommand(1);
    app_.set_version_flag("--version", version_text, "Print the versions of Capstan, its plugin ABI and LibTorch");
    define_train();
    define_tune();
    define_eval();
    define_analyze();
    define_export();
    define_plan();
    define_model();
    define_attention();
    define_validate();
    define_schema();
    define_report();
    define_upgrade();
    define_elastic();
    define_launch();
    define_data();
    define_plugins();
    define_doctor();
    finish(app_);
  }
  Definition(const Definition&) = delete;

  CommandLine read(int argc, const char* const* argv);

 private:
  template <class T>
  CLI::App& begin(CLI::App& parent, const char* name, const char* description, const char* footer,
                  std::optional<Command<T>>& command) {
    command.emplace(Command<T>{parent.add_subcommand(name, description), T{}});
    command->app->footer(footer);
    finish(*command->app);
    return *command->app;
  }

  void finish(CLI::App& app) { app.get_formatter()->column_width(34); }

  void define_train() {
    CLI::App& app = begin(app_, "train", "Train a model", kTrainExamples, train_);
    TrainArguments& train = train_->arguments;
    config_option(app, train.config);
    Overrides& keys = overrides_.emplace_back(app, train.config);
    keys.text("--model", "capstan.model", "TYPE[:SIZE]", "Model, for instance gpt:tiny");
    keys.list("--data", "capstan.data.path", "Files or folders to train on: text as bytes, .bin as 16-bit tokens");
    keys.text("--device", "capstan.run.device", "cpu|cuda", "Device to train on; a GPU where there is one without it");
    keys.integer("--steps", "capstan.run.steps", "Steps to train, counted from the beginning of the run");
    keys.text("--save", "capstan.run.save_dir", "DIR", "Folder for checkpoints");
    keys.integer("--save-every", "capstan.run.save_every", "Steps between checkpoints; 0: one at the end");
    keys.integer("--keep", "capstan.run.keep", "This run's newest checkpoints that are kept; 0: all");
    keys.on("--overwrite", "capstan.run.overwrite", "Save into a folder that holds checkpoints of another run");
    text_option(app, "--resume", train.resume, "DIR[:TAG]", "Continue from a checkpoint, the latest without TAG");
    text_option(app, "--init-from", train.init_from, "PATH",
                "Start from the weights of a safetensors file, or of a folder of transformers")
        ->excludes("--resume");
    keys.text("--teacher", "capstan.teacher.path", "PATH",
              "Checkpoint (DIR[:TAG]) or safetensors file that layer reduction takes layers from");
    keys.list("--eval-data", "capstan.data.eval_path", "Files or folders to evaluate on");
    keys.integer("--eval-every", "capstan.run.eval_every", "Steps between evaluations; 0: one at the end");
    keys.integer("--seed", "capstan.run.seed", "Seed of initial values, data order and dropout");
    keys.integer("--seq", "capstan.data.sequence_length", "Tokens a sample; the model's own length without it");
    app.add_flag_function(
        "--no-progress", [&train](std::int64_t) { train.progress = false; }, "No progress bar, also on a terminal");
    text_option(app, "--report", train.report, "WHAT",
                "At the end, comms: what processes sent to each other; stragglers: and which of them came late")
        ->check(CLI::IsMember({"comms", "stragglers"}));
    keys.common();
  }

  void define_tune() {
    CLI::App& app = begin(app_, "tune", "Search the fastest configuration by short trials", kTuneExamples, tune_);
    TuneArguments& tune = tune_->arguments;
    config_option(app, tune.config);
    count_option(app, "-n,--processes", tune.processes, "Processes of a trial; 1 without it");
    flag(app, "--run", tune.run, "Train with the configuration that was found");
    flag(app, "--dry-run", tune.dry_run, "Show what would be tried, what is excluded and why; start nothing");
    app.add_option_function<std::string>(
           "--limit", [&tune](const std::string& given) { tune.limit = byte_count("--limit", given); },
           "Memory that a process may take, 1500M or 1.5G; what this machine has without it")
        ->type_name("BYTES")
        ->take_last();
    app.add_option_function<std::string>(
           "--time-out",
           [&tune](const std::string& given) {
             tune.time_out = whole_number("--time-out", given);
             if (tune.time_out < 1) throw UsageError("--time-out: must be 1 or more, got " + given + ".");
           },
           "Seconds that a trial may take; 60, or 20 times the longest so far, without it")
        ->type_name("SECONDS")
        ->take_last();
    text_option(app, "--record", tune.record, "TABLE", "Try every point several times, and write all times to a file");
    text_option(app, "--replay", tune.replay, "TABLE", "Search such a file with every installed tuner, without trials");
    count_option(app, "--repeats", tune.repeats, "Runs of each point in a table; 3 without it");
    count_option(app, "--seeds", tune.seeds, "Searches of a replay; 100 without it");
    Overrides& keys = overrides_.emplace_back(app, tune.config);
    keys.text("--model", "capstan.model", "TYPE[:SIZE]", "Model, for instance gpt:tiny");
    keys.list("--data", "capstan.data.path", "Files or folders to train on");
    keys.text("--device", "capstan.run.device", "cpu|cuda", "Device to train on; a GPU where there is one without it");
    keys.integer("--steps", "capstan.run.steps", "Steps to train with --run");
    keys.text("--save", "capstan.run.save_dir", "DIR", "Folder for checkpoints of --run");
    keys.integer("--save-every", "capstan.run.save_every", "Steps between checkpoints; 0: one at the end");
    keys.integer("--keep", "capstan.run.keep", "This run's newest checkpoints that are kept; 0: all");
    keys.on("--overwrite", "capstan.run.overwrite", "Save into a folder that holds checkpoints of another run");
    text_option(app, "--init-from", tune.init_from, "PATH", "Weights that --run starts from");
    keys.list("--eval-data", "capstan.data.eval_path", "Files or folders to evaluate on with --run");
    keys.integer("--eval-every", "capstan.run.eval_every", "Steps between evaluations; 0: one at the end");
    keys.integer("--seed", "capstan.run.seed", "Seed of initial values, data order, dropout and the tuner");
    keys.integer("--seq", "capstan.data.sequence_length", "Tokens a sample; the model's own length without it");
    app.add_flag_function(
        "--no-progress", [&tune](std::int64_t) { tune.progress = false; }, "No progress bar, also on a terminal");
    keys.common();
    app.prefix_command();
  }

  void define_launch() {
    CLI::App& app = begin(app_, "launch", "Run a command in several processes on this host", kLaunchExamples, launch_);
    app.add_option_function<std::string>(
           "-n,--processes",
           [this](const std::string& given) {
             const std::int64_t count = whole_number("-n", given);
             if (count < 0 || count > 1024) throw UsageError("-n: 1 to 1024 processes, got " + given + ".");
             launch_->arguments.processes = static_cast<int>(count);
             launch_->arguments.witness = count == 0;
           },
           "Processes to start; with --elastic MAX of them without it; 0, with --rdzv: only to decide with other hosts")
        ->type_name("N")
        ->take_last();
    app.add_option_function<std::string>(
           "--elastic",
           [this](const std::string& given) {
             const std::size_t colon = given.find(':');
             if (colon == std::string::npos)
               throw UsageError("--elastic: MIN:MAX, for instance 1:4, got " + given + ".");
             const std::int64_t least = whole_number("--elastic", given.substr(0, colon)),
                                most = whole_number("--elastic", given.substr(colon + 1));
             if (least < 1 || most > 1024 || least > most) {
               throw UsageError("--elastic: MIN is at least 1, MAX at most 1024 and not below MIN, got " + given + ".");
             }
             launch_->arguments.elastic = {static_cast<int>(least), static_cast<int>(most)};
           },
           "Training goes on when processes are lost, leave or join, with at least MIN and at most MAX of them")
        ->type_name("MIN:MAX")
        ->take_last();
    count_option(app, "--spares", launch_->arguments.spares,
                 "With --elastic: processes that wait to replace a lost one");
    app.add_option_function<std::string>(
           "--rdzv",
           [this](const std::string& given) {
             launch_->arguments.rdzv = LauncherAddress::list_of(given);
             if (!launch_->arguments.rdzv.empty()) return;
             throw UsageError("--rdzv: HOST:PORT, or several of these between commas, for instance node1:29400, got " +
                              given + ".");
           },
           "With --elastic on several hosts: where the launchers find together; the same on all, the first leads")
        ->type_name("HOST:PORT,...")
        ->take_last();
    text_option(
        app, "--rdzv-secret-file", launch_->arguments.rdzv_secret_file, "FILE",
        "With --rdzv: a file of yours alone that holds the secret of all launchers; CAPSTAN_RDZV_SECRET holds it "
        "as well");
    app.add_flag("--status", launch_->arguments.status,
                 "Show the elastic launches on this host, or that at --rdzv, and start nothing");
    app.prefix_command();
  }

  void define_eval() {
    CLI::App& app = begin(app_, "eval", "Evaluate a checkpoint", kEvalExamples, eval_);
    EvalArguments& eval = eval_->arguments;
    config_option(app, eval.config);
    Overrides& keys = overrides_.emplace_back(app, eval.config);
    keys.text("--model", "capstan.model", "TYPE[:SIZE]", "Model, for instance gpt:tiny");
    keys.text("--device", "capstan.run.device", "cpu|cuda", "Device to run on; a GPU where there is one without it");
    keys.list("--data", "capstan.data.eval_path", "Files or folders to evaluate on");
    text_option(app, "--checkpoint", eval.checkpoint, "DIR[:TAG]", "Checkpoint, the latest without TAG");
    text_option(app, "--init-from", eval.init_from, "PATH",
                "Weights of a safetensors file, or of a folder of transformers, instead of a checkpoint")
        ->excludes("--checkpoint");
    keys.integer("--seq", "capstan.data.sequence_length", "Tokens a sample; the model's own length without it");
    keys.common();
  }

  void define_analyze() {
    CLI::App& app =
        begin(app_, "analyze", "Measure every sample of the data, for curricula", kAnalyzeExamples, analyze_);
    AnalyzeArguments& analyze = analyze_->arguments;
    config_option(app, analyze.config);
    Overrides& keys = overrides_.emplace_back(app, analyze.config);
    keys.text("--model", "capstan.model", "TYPE[:SIZE]",
              "Model, which tells the vocabulary and the length of a sample");
    keys.list("--data", "capstan.data.path", "Files or folders to analyse");
    keys.integer("--seq", "capstan.data.sequence_length", "Tokens a sample; the model's own length without it");
    app.add_option("--metric", analyze.metrics, "What to measure; may be repeated. Parameters: TYPE:{\"name\": value}")
        ->type_name("TYPE")
        ->expected(1)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
        ->required();
    text_option(app, "--out", analyze.out, "DIR", "Folder for the indices of the metrics")->required();
    count_option(app, "-n,--processes", analyze.processes, "Processes that measure");
    keys.common();
  }

  void define_export() {
    CLI::App& app = begin(app_, "export", "Write a checkpoint's weights for other programs", kExportExamples, export_);
    ExportArguments& arguments = export_->arguments;
    text_option(app, "--checkpoint", arguments.checkpoint, "DIR[:TAG]", "Checkpoint, the latest without TAG")
        ->required();
    choice_option(app, "--to", arguments.format, {"pt", "safetensors", "hf", "gguf"},
                  "Format: a file, or with hf a folder for transformers", true);
    flag(app, "--compressed", arguments.compressed,
         "Weights that compression_training rounds as the codes that were trained");
    text_option(app, "--out", arguments.out, "PATH", "The file or folder to write")->required();
    choice_option(app, "--dtype", arguments.dtype, {"float32", "bfloat16", "float16"},
                  "Convert floating-point values; as saved without it", false);
    plugin_path(app, arguments.plugin_paths);
  }

  void define_plan() {
    CLI::App& app =
        begin(app_, "plan", "Tell beforehand what a run needs: memory, disk, bytes on the wire", kPlanExamples, plan_);
    PlanArguments& plan = plan_->arguments;
    config_option(app, plan.config);
    Overrides& keys = overrides_.emplace_back(app, plan.config);
    keys.text("--model", "capstan.model", "TYPE[:SIZE]", "Model, for instance gpt:124m");
    count_option(app, "--world", plan.world, "Processes; WORLD_SIZE, else 1, without it");
    count_option(app, "--local-world", plan.local_world, "Processes on one host; all of them without it");
    flag(app, "--with-values", plan.with_values, "Build the model whole, where its code needs values to be built");
    flag(app, "--json", plan.json, "Print the plan as JSON");
    keys.common();
  }

  void define_model() {
    CLI::App& model = *app_.add_subcommand("model", "What a model is made of");
    model.require_subcommand(1);
    CLI::App& show = begin(model, "show", "List a model's parameters with shapes, types, counts and roles",
                           kModelShowExamples, model_show_);
    ModelShowArguments& arguments = model_show_->arguments;
    text_option(show, "model", arguments.model, "TYPE[:SIZE]|FILE", "Model, for instance gpt:124m, or a plugin's file")
        ->required();
    config_option(show, arguments.config);
    flag(show, "--with-values", arguments.with_values,
         "Build the model whole, where its code needs values to be built");
    flag(show, "--json", arguments.json, "Print the list as JSON");
    overrides_.emplace_back(show, arguments.config).common();
  }

  void define_attention() {
    CLI::App& attention = *app_.add_subcommand("attention", "Layouts of block-sparse attention");
    attention.require_subcommand(1);
    CLI::App& show = begin(attention, "show", "Draw the layout of a configuration, with its density and its gain",
                           kAttentionShowExamples, attention_show_);
    AttentionShowArguments& arguments = attention_show_->arguments;
    config_option(show, arguments.config);
    count_option(show, "--length", arguments.length, "Tokens of a sequence; capstan.run.sequence_length without it");
    count_option(show, "--heads", arguments.heads, "Heads of the model; 1 without it");
    flag(show, "--causal", arguments.causal, "The model's calls are causal, whatever the layout");
    flag(show, "--full", arguments.full, "Draw layouts that fit no terminal");
    flag(show, "--json", arguments.json, "Print the layout as JSON");
    overrides_.emplace_back(show, arguments.config).common();
  }

  void define_validate() {
    CLI::App& app =
        begin(app_, "validate", "Check a configuration and report every problem at once", kValidateExamples, validate_);
    ValidateArguments& validate = validate_->arguments;
    CLI::Option* file = text_option(app, "file", validate.config.file, "FILE", "Configuration, JSON, TOML or YAML");
    CLI::Option* explain = text_option(app, "--explain", validate.explain, "KEY", "Say what a key means instead");
    explain->excludes(file);
    app.add_option_function<std::string>(
           "--world",
           [&validate](const std::string& given) {
             validate.world = static_cast<int>(std::clamp<std::int64_t>(whole_number("--world", given), -1, 1 << 30));
             validate.world_given = true;
             if (validate.world < 1) throw UsageError("--world: must be 1 or more, got " + given + ".");
           },
           "Processes that the run is checked for; WORLD_SIZE, else whatever fits, without it")
        ->type_name("N")
        ->take_last();
    flag(app, "--json", validate.json, "Print the problems as JSON");
    overrides_.emplace_back(app, validate.config).common();
  }

  void define_schema() {
    CLI::App& app = begin(app_, "schema", "Print one JSON Schema for the configuration and every installed plugin",
                          kSchemaExamples, schema_);
    plugin_path(app, schema_->arguments.plugin_paths);
    flag(app, "--reference", schema_->arguments.reference, "Print the reference page of the language instead");
  }

  void define_report() {
    CLI::App& app = begin(app_, "report", "Write a page with plots of a run's metrics, which opens offline",
                          kReportExamples, report_);
    text_option(app, "run", report_->arguments.run, "RUN",
                "The folder of the run's csv_monitor, or of a search of capstan tune")
        ->required();
    text_option(app, "--out", report_->arguments.out, "FILE", "The page; RUN/report.html without it");
  }

  void define_upgrade() {
    CLI::App& app = begin(app_, "upgrade", "Write a configuration with today's spellings; comments stay",
                          kUpgradeExamples, upgrade_);
    text_option(app, "file", upgrade_->arguments.file, "FILE", "Configuration, JSON")->required();
    flag(app, "--in-place", upgrade_->arguments.in_place, "Change the file instead of printing the new text");
  }

  void define_elastic() {
    CLI::App& app = begin(app_, "elastic", "Compute the elastic batch and the world sizes that it fits",
                          kElasticExamples, elastic_);
    ElasticArguments& elastic = elastic_->arguments;
    text_option(app, "file", elastic.config.file, "FILE", "Configuration, JSON, TOML or YAML")->required();
    app.add_option_function<std::string>(
           "--world",
           [&elastic](const std::string& given) {
             elastic.world = std::clamp<std::int64_t>(whole_number("--world", given), -1, 1 << 30);
             if (elastic.world < 1) throw UsageError("--world: must be 1 or more, got " + given + ".");
           },
           "Devices to split the batch for; WORLD_SIZE without it")
        ->type_name("N")
        ->take_last();
    flag(app, "--json", elastic.json, "Print the result as JSON");
    overrides_.emplace_back(app, elastic.config).common();
  }

  void define_data() {
    CLI::App& data = *app_.add_subcommand("data", "Convert files of tokens, and look at them");
    data.require_subcommand(1);
    CLI::App& convert =
        begin(data, "convert", "Write tokens as another kind of file", kDataConvertExamples, data_convert_);
    DataConvertArguments& to = data_convert_->arguments;
    convert.add_option("inputs", to.inputs, "What to read, one after another")->type_name("FILE")->required();
    choice_option(convert, "--from", to.from, token_formats(), "What it is; by the names of the files without it",
                  false);
    choice_option(convert, "--to", to.to, {"bytes", "uint16", "uint32", "indexed"}, "What to write", true);
    text_option(convert, "--out", to.out, "FILE|NAME", "The file; NAME of NAME.idx and NAME.bin for indexed")
        ->required();
    text_option(convert, "--key", to.key, "NAME", "jsonl: the member that holds a document's text; text without it");
    choice_option(convert, "--numbering", to.numbering, {"megatron", "deepspeed"},
                  "indexed: whose numbers of types; Megatron's without it", false);
    convert
        .add_option_function<std::string>(
            "--end-token",
            [&to](const std::string& given) {
              to.end_token = whole_number("--end-token", given);
              if (to.end_token < 0) throw UsageError("--end-token: must not be negative, got " + given + ".");
            },
            "The token that ends a document: where tokens are read one after another, and where they are written so")
        ->type_name("ID")
        ->take_last();
    flag(convert, "--force", to.force, "Replace what is there");
    CLI::App& show = begin(data, "show", "Tell what a file of tokens, or an index of a metric, holds",
                           kDataShowExamples, data_show_);
    DataShowArguments& shown = data_show_->arguments;
    text_option(show, "file", shown.file, "FILE", "The file; NAME of NAME.idx and NAME.bin will do")->required();
    choice_option(show, "--from", shown.from, token_formats(), "What it is; by its name without it", false);
    text_option(show, "--key", shown.key, "NAME", "jsonl: the member that holds a document's text; text without it");
    flag(show, "--json", shown.json, "Print the facts as JSON");
  }

  void define_plugins() {
    CLI::App& plugins = *app_.add_subcommand("plugins", "What is installed, and what a plugin file says of itself");
    plugins.require_subcommand(1);
    CLI::App& list =
        begin(plugins, "list", "List the components of all plugins found, without loading any", kListExamples, list_);
    plugin_path(list, list_->arguments.plugin_paths);
    flag(list, "--json", list_->arguments.json, "Print the list as JSON");
    CLI::App& inspect =
        begin(plugins, "inspect", "Show one plugin's manifest, without loading it", kInspectExamples, inspect_);
    text_option(inspect, "file", inspect_->arguments.file, "FILE", "The plugin's .so file")->required();
    const auto json = flag(inspect, "--json", inspect_->arguments.json, "Print the manifest as JSON");
    flag(inspect, "--manifest-only", inspect_->arguments.manifest_only,
         "Print nothing but what is wrong with the manifest, for a build")
        ->excludes(json);
    CLI::App& check = begin(plugins, "check", "Try everything that a plugin must keep to, each in a process of its own",
                            kCheckExamples, check_);
    text_option(check, "file", check_->arguments.file, "FILE", "The plugin's .so file")->required();
    text_option(check, "--only", check_->arguments.only, "TEXT", "Cases whose name contains it");
    check
        .add_option_function<std::string>(
            "--seed", [this](const std::string& given) { check_->arguments.seed = whole_number("--seed", given); },
            "Seed of all random numbers")
        ->type_name("N")
        ->take_last();
    check
        .add_option_function<std::string>(
            "--timeout",
            [this](const std::string& given) { check_->arguments.timeout = whole_number("--timeout", given); },
            "Seconds that a case may take; 60 without it")
        ->type_name("SECONDS")
        ->take_last();
    text_option(check, "--params", check_->arguments.params, "JSON",
                "Values of parameters in place of their defaults: '{\"names\": [\"attn\"]}'");
    flag(check, "--in-process", check_->arguments.in_process, "No processes of their own: for the debugger");
    flag(check, "--json", check_->arguments.json, "Print the results as JSON");
    CLI::App& install = begin(plugins, "install", "Copy plugins to where they are always found, and pin their bytes",
                              kInstallExamples, install_);
    text_option(install, "source", install_->arguments.source, "FILE|FOLDER",
                "A plugin's .so file, or a folder of them")
        ->required();
    text_option(install, "--to", install_->arguments.folder, "DIR",
                "The folder; ~/.local/share/capstan/plugins without it");
    flag(install, "--force", install_->arguments.force, "Replace what is there, and keep types that are there twice");
    CLI::App& remove = begin(plugins, "remove", "Remove an installed plugin", kRemoveExamples, remove_);
    text_option(remove, "name", remove_->arguments.name, "NAME", "The package's name, or the file's")->required();
    text_option(remove, "--from", remove_->arguments.folder, "DIR", "The folder that it was installed to");
    CLI::App& made = begin(plugins, "new", "Start a plugin project of your own", kNewExamples, new_);
    text_option(made, "name", new_->arguments.name, "NAME", "VENDOR-NAME, in lower case: acme-signum")->required();
    text_option(made, "--kind", new_->arguments.kind, "KIND", template_kinds("or"))->required();
    CLI::Option* lang = text_option(made, "--lang", new_->arguments.lang, "c|c++", "Language; c++ without it")
                            ->check(CLI::IsMember({"c", "c++"}));
    text_option(made, "--template", new_->arguments.variant, "NAME",
                "Another start: matrix (optimizer), batch or weights (observer)")
        ->excludes(lang);
    text_option(made, "--out", new_->arguments.folder, "DIR", "The project's folder; ./NAME without it");
  }

  void define_doctor() {
    CLI::App& app = begin(app_, "doctor", "Show what this machine has, what is missing and how to get it", "", doctor_);
    plugin_path(app, doctor_->arguments.plugin_paths);
    flag(app, "--json", doctor_->arguments.json, "Print the findings as JSON");
  }

  /// The innermost command that the line named.
  const CLI::App& deepest() const {
    const CLI::App* at = &app_;
    while (!at->get_subcommands().empty()) at = at->get_subcommands().front();
    return *at;
  }

  CommandLine misuse(const std::string& message) const;
  std::string unknown_word() const;
  TuneArguments tune_arguments() const;
  std::optional<Arguments> taken() const;

  CLI::App app_;
  std::list<Overrides> overrides_;
  std::optional<Command<TrainArguments>> train_;
  std::optional<Command<TuneArguments>> tune_;
  std::optional<Command<LaunchArguments>> launch_;
  std::optional<Command<EvalArguments>> eval_;
  std::optional<Command<AnalyzeArguments>> analyze_;
  std::optional<Command<DataConvertArguments>> data_convert_;
  std::optional<Command<DataShowArguments>> data_show_;
  std::optional<Command<ExportArguments>> export_;
  std::optional<Command<DoctorArguments>> doctor_;
  std::optional<Command<PlanArguments>> plan_;
  std::optional<Command<ModelShowArguments>> model_show_;
  std::optional<Command<AttentionShowArguments>> attention_show_;
  std::optional<Command<ValidateArguments>> validate_;
  std::optional<Command<SchemaArguments>> schema_;
  std::optional<Command<ReportArguments>> report_;
  std::optional<Command<UpgradeArguments>> upgrade_;
  std::optional<Command<ElasticArguments>> elastic_;
  std::optional<Command<PluginsCheckArguments>> check_;
  std::optional<Command<PluginsListArguments>> list_;
  std::optional<Command<PluginsInspectArguments>> inspect_;
  std::optional<Command<PluginsNewArguments>> new_;
  std::optional<Command<PluginsInstallArguments>> install_;
  std::optional<Command<PluginsRemoveArguments>> remove_;
};

/// "capstan plugins list"
std::string full_name(const CLI::App& app) {
  const CLI::App* parent = app.get_parent();
  return parent ? full_name(*parent) + " " + app.get_name() : app.get_name();
}

std::string help_text(const CLI::App& app) {
  const CLI::App* parent = app.get_parent();
  return app.help(parent ? full_name(*parent) : "");
}

CommandLine Definition::misuse(const std::string& message) const {
  const std::string command = full_name(deepest());
  return {{},
          "capstan: error: " + message + "\n'" + command + " --help' lists what there is.\n",
          static_cast<int>(ExitCode::kUsage)};
}

/// About the first word that no command knows, or empty.
std::string Definition::unknown_word() const {
  const CLI::App& app = deepest();
  const Words words = app_.remaining(true);
  if (words.empty()) return "";
  const std::string& word = words.front();
  Words known;
  if (word.starts_with('-')) {
    const std::string name = word.substr(0, word.find('='));
    for (const CLI::Option* option : app.get_options()) {
      for (const std::string& one : option->get_lnames()) known.push_back("--" + one);
    }
    return "unknown option '" + name + "' of '" + full_name(app) + "'." + suggestion(name, known);
  }
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    known.push_back(command->get_name());
  }
  if (known.empty()) return "'" + full_name(app) + "' does not take the argument '" + word + "'.";
  std::string all;
  for (const std::string& name : known) all += (all.empty() ? "" : ", ") + name;
  const bool option = word == "version" || word == "help";
  return "'" + full_name(app) + "' has no command '" + word + "'." +
         (option ? " Did you mean '--" + word + "'?" : suggestion(word, known)) + " It has: " + all + ".";
}

void check_launch(const LaunchArguments& arguments) {
  if (arguments.rdzv.empty() && !arguments.rdzv_secret_file.empty()) {
    throw UsageError("launch: --rdzv-secret-file has no effect without --rdzv.");
  }
  if (arguments.status) return;
  const auto& elastic = arguments.elastic;
  if (arguments.witness && (!elastic || arguments.rdzv.empty())) {
    throw UsageError(
        "-n: 1 to 1024 processes, got 0. A launcher without processes, which only decides with those of other hosts "
        "which of them go on, needs --elastic and --rdzv.");
  }
  if (!elastic && arguments.spares > 0) throw UsageError("launch: --spares has no effect without --elastic.");
  if (!elastic && arguments.processes == 0) {
    throw UsageError("launch: how many processes? For instance: capstan launch -n 2 train --config ds_config.json.");
  }
  if (!elastic && !arguments.rdzv.empty()) throw UsageError("launch: --rdzv has no effect without --elastic.");
  if (!arguments.rdzv.empty() && arguments.processes == 0 && !arguments.witness) {
    throw UsageError(
        "launch: --rdzv needs -n, the number of processes on this host; MIN:MAX of --elastic count those "
        "of all hosts.");
  }
  const int least = elastic && arguments.rdzv.empty() ? elastic->least : 1;
  if (elastic && arguments.processes > 0 && (arguments.processes < least || arguments.processes > elastic->most)) {
    throw UsageError("launch: -n " + std::to_string(arguments.processes) + " is not between MIN and MAX of --elastic " +
                     std::to_string(elastic->least) + ":" + std::to_string(elastic->most) + ".");
  }
  if (arguments.command.empty()) {
    throw UsageError("launch: what is to be started? For instance: capstan launch -n 2 train --config ds_config.json.");
  }
}

TuneArguments Definition::tune_arguments() const {
  TuneArguments arguments = tune_->arguments;
  arguments.program = tune_->app->remaining();
  if (!arguments.program.empty() && arguments.program.front().find('/') == std::string::npos) {
    const std::string& word = arguments.program.front();
    if (word.starts_with('-')) {
      Words known;
      for (const CLI::Option* option : tune_->app->get_options()) {
        for (const std::string& one : option->get_lnames()) known.push_back("--" + one);
      }
      throw UsageError("unknown option '" + word + "' of 'capstan tune'." + suggestion(word, known));
    }
    throw UsageError("tune: '" + word + "' is not a program: write it with a '/', for instance ./" + word + ".");
  }
  if (!arguments.program.empty() && !arguments.config.file.empty()) {
    throw UsageError(
        "tune: --config stands before the program, and a program has its configuration among its own "
        "arguments. Move it behind '" +
        arguments.program.front() + "'.");
  }
  if (!arguments.record.empty() && !arguments.replay.empty()) {
    throw UsageError("tune: --record and --replay exclude each other.");
  }
  return arguments;
}

std::optional<Arguments> Definition::taken() const {
  if (launch_->app->parsed()) {
    LaunchArguments arguments = launch_->arguments;
    arguments.command = launch_->app->remaining();
    check_launch(arguments);
    return arguments;
  }
  if (tune_->app->parsed()) return tune_arguments();
  if (train_->app->parsed()) return train_->arguments;
  if (eval_->app->parsed()) return eval_->arguments;
  if (analyze_->app->parsed()) return analyze_->arguments;
  if (data_convert_->app->parsed()) return data_convert_->arguments;
  if (data_show_->app->parsed()) return data_show_->arguments;
  if (export_->app->parsed()) return export_->arguments;
  if (doctor_->app->parsed()) return doctor_->arguments;
  if (plan_->app->parsed()) return plan_->arguments;
  if (model_show_->app->parsed()) return model_show_->arguments;
  if (attention_show_->app->parsed()) return attention_show_->arguments;
  if (validate_->app->parsed()) return validate_->arguments;
  if (schema_->app->parsed()) return schema_->arguments;
  if (report_->app->parsed()) return report_->arguments;
  if (upgrade_->app->parsed()) return upgrade_->arguments;
  if (elastic_->app->parsed()) return elastic_->arguments;
  if (check_->app->parsed()) return check_->arguments;
  if (list_->app->parsed()) return list_->arguments;
  if (inspect_->app->parsed()) return inspect_->arguments;
  if (new_->app->parsed()) return new_->arguments;
  if (install_->app->parsed()) return install_->arguments;
  if (remove_->app->parsed()) return remove_->arguments;
  return std::nullopt;
}

CommandLine Definition::read(int argc, const char* const* argv) {
  try {
    app_.parse(argc, argv);
    return {taken(), "", 0};
  } catch (const CLI::CallForHelp&) {
    return {{}, help_text(deepest()), 0};
  } catch (const CLI::CallForVersion& version) {
    return {{}, std::string(version.what()) + "\n", 0};
  } catch (const UsageError& error) {
    return misuse(error.what());
  } catch (const CLI::ParseError& error) {
    // A misspelt word makes other things missing: it is the cause, so it is what is said.
    const std::string unknown = unknown_word();
    if (!unknown.empty()) return misuse(unknown);
    if (deepest().get_subcommands([](const CLI::App*) { return true; }).size() > 0) {
      return {{}, help_text(deepest()), static_cast<int>(ExitCode::kUsage)};
    }
    return misuse(std::string(error.what()) + ".");
  }
}

}  // namespace

CommandLine read_command_line(int argc, const char* const* argv) {
  Definition definition;
  return definition.read(argc, argv);
}

}  // namespace capstan::cli
