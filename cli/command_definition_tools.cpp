// The commands about configurations, models, files of data and plugins.

#include <algorithm>
#include <limits>

#include "cli/command_definition.hpp"
#include "cli/data/token_formats.hpp"
#include "cli/help_texts.hpp"
#include "core/registry/plugin_template.hpp"

namespace capstan::cli {
namespace {

/// --processes of a command that reads files in pieces.
void processes_option(CLI::App& app, int& to) {
  app.add_option_function<std::string>(
         "--processes",
         [&to](const std::string& given) {
           const std::int64_t count = whole_number("--processes", given);
           if (count < 1 || count > 1024) throw UsageError("--processes: must be 1 to 1,024, got " + given + ".");
           to = static_cast<int>(count);
         },
         "How many processes read at a time; without it as many as there are cores, 16 at most")
      ->type_name("N")
      ->take_last();
}

}  // namespace

void Definition::define_plan() {
  CLI::App& app =
      begin(app_, "plan", "Predict what a run needs: memory, disk, bytes on the wire", kPlanExamples, plan_);
  PlanArguments& plan = plan_->arguments;
  config_option(app, plan.config);
  Overrides& keys = overrides_.emplace_back(app, plan.config);
  keys.model("Model, for instance gpt:124m", /*begins=*/false);
  keys.text("--device", "capstan.run.device", "cpu|cuda|TYPE",
            "Device to plan for; a GPU where there is one without it");
  keys.integer("--seq", "capstan.data.sequence_length", "Tokens a sample; the model's own length without it");
  count_option(app, "--world", plan.world, "Processes; WORLD_SIZE, else 1, without it");
  count_option(app, "--local-world", plan.local_world, "Processes on one host; all of them without it");
  flag(app, "--with-values", plan.with_values, "Build the model whole, where its code needs values to be built");
  flag(app, "--json", plan.json, "Print the plan as JSON");
  keys.common();
}

void Definition::define_verify() {
  CLI::App& app =
      begin(app_, "verify", "Check that stages, processes, accumulation, offload and resuming change nothing",
            kVerifyExamples, verify_);
  VerifyArguments& verify = verify_->arguments;
  config_option(app, verify.config);
  Overrides& keys = overrides_.emplace_back(app, verify.config);
  keys.model("Model, for instance gpt:tiny", /*begins=*/false);
  keys.list("--data", "capstan.data.path", "Files or folders to train on");
  keys.text("--device", "capstan.run.device", "cpu|cuda|TYPE",
            "Device to train on; a GPU where there is one without it");
  keys.integer("--seed", "capstan.run.seed", "Seed of initial values, data order and dropout");
  keys.integer("--seq", "capstan.data.sequence_length", "Tokens a sample; the model's own length without it");
  count_option(app, "-n,--processes,--world", verify.world, "Processes of the variants with several; 2 without it");
  count_option(app, "--steps", verify.steps, "Steps of each run, at least 2; 4 without it");
  text_option(app, "--only", verify.only, "TEXT",
              "Variants whose name contains it, and those that they are compared with");
  flag(app, "--json", verify.json, "Print the comparison as JSON");
  text_option(app, "--json-file", verify.json_file, "FILE", "Write the comparison there as JSON");
  text_option(app, "--html", verify.html, "FILE", "Write a page with badges there: stages, resuming, offload, worlds");
  // Of capstan.verify in Python.
  app.add_option("--peer", verify.peers)->allow_extra_args(false)->group("");
  app.add_option("--program", verify.program)->allow_extra_args(false)->group("");
  // Of the runs that the command starts itself.
  for (const auto& [name, value] :
       {std::pair("--record", &verify.record), {"--save", &verify.save}, {"--resume", &verify.resume}}) {
    text_option(app, name, *value, "DIR", "")->group("");
  }
  count_option(app, "--until", verify.until, "")->group("");
  flag(app, "--second", verify.second, "")->group("");
  keys.common();
}

void Definition::define_checkpoint() {
  CLI::App& checkpoint = *app_.add_subcommand("checkpoint", "What checkpoints hold, and which of them to keep");
  checkpoint.require_subcommand(1);
  CLI::App& show = begin(checkpoint, "show", "Tell of a checkpoint of Capstan or DeepSpeed what it holds",
                         kCheckpointShowExamples, checkpoint_show_);
  CheckpointShowArguments& arguments = checkpoint_show_->arguments;
  text_option(show, "checkpoint", arguments.checkpoint, "DIR[:TAG]", "Checkpoint, the latest without TAG")->required();
  flag(show, "--hash", arguments.hash, "With the SHA-256 of each tensor's values as float32");
  flag(show, "--json", arguments.json, "Print all of it as JSON, tensor by tensor");

  CLI::App& list =
      begin(checkpoint, "list", "List the checkpoints of a folder: step, size, time, whether they are whole",
            kCheckpointListExamples, checkpoint_list_);
  text_option(list, "dir", checkpoint_list_->arguments.dir, "DIR", "Folder of checkpoints")->required();
  flag(list, "--json", checkpoint_list_->arguments.json, "Print the list as JSON");

  CLI::App& prune =
      begin(checkpoint, "prune", "Delete older checkpoints of a folder", kCheckpointPruneExamples, checkpoint_prune_);
  CheckpointPruneArguments& pruned = checkpoint_prune_->arguments;
  text_option(prune, "dir", pruned.dir, "DIR", "Folder of checkpoints")->required();
  prune
      .add_option_function<std::string>(
          "--keep",
          [&pruned](const std::string& given) {
            pruned.keep = whole_number("--keep", given);
            if (pruned.keep < 1) throw UsageError("--keep: must be 1 or more, got " + given + ".");
          },
          "How many of the furthest whole checkpoints stay")
      ->type_name("N")
      ->take_last()
      ->required();
  flag(prune, "--dry-run", pruned.dry_run, "Say what would be deleted, and delete nothing");

  CLI::App& verify = begin(checkpoint, "verify", "Read a checkpoint and compare it with its checksums",
                           kCheckpointVerifyExamples, checkpoint_verify_);
  CheckpointVerifyArguments& verified = checkpoint_verify_->arguments;
  text_option(verify, "checkpoint", verified.checkpoint, "DIR[:TAG]", "Checkpoint, the latest without TAG")->required();
  flag(verify, "--all", verified.all, "All checkpoints of DIR");
  flag(verify, "--json", verified.json, "Print the result as JSON");

  CLI::App& diff =
      begin(checkpoint, "diff", "Compare two checkpoints, tensor by tensor", kCheckpointDiffExamples, checkpoint_diff_);
  CheckpointDiffArguments& compared = checkpoint_diff_->arguments;
  text_option(diff, "a", compared.a, "A", "Checkpoint, DIR[:TAG]")->required();
  text_option(diff, "b", compared.b, "B", "The other checkpoint, DIR[:TAG]")->required();
  flag(diff, "--json", compared.json, "Print the differences as JSON, all of them");
}

void Definition::define_model() {
  CLI::App& model = *app_.add_subcommand("model", "What a model is made of");
  model.require_subcommand(1);
  CLI::App& show = begin(model, "show", "List a model's parameters with shapes, types, counts and roles",
                         kModelShowExamples, model_show_);
  ModelShowArguments& arguments = model_show_->arguments;
  text_option(show, "model", arguments.model, "TYPE[:SIZE]|hf:FOLDER|FILE",
              "Model, for instance gpt:124m, or a plugin's file")
      ->required();
  config_option(show, arguments.config);
  flag(show, "--with-values", arguments.with_values, "Build the model whole, where its code needs values to be built");
  flag(show, "--json", arguments.json, "Print the list as JSON");
  overrides_.emplace_back(show, arguments.config).common();
}

void Definition::define_attention() {
  CLI::App& attention = *app_.add_subcommand("attention", "Layouts of block-sparse attention");
  attention.require_subcommand(1);
  CLI::App& show = begin(attention, "show", "Draw the layout of a configuration, with its density and its gain",
                         kAttentionShowExamples, attention_show_);
  AttentionShowArguments& arguments = attention_show_->arguments;
  config_option(show, arguments.config);
  count_option(show, "--length", arguments.length, "Tokens of a sequence; capstan.data.sequence_length without it");
  count_option(show, "--heads", arguments.heads, "Heads of the model; 1 without it");
  flag(show, "--causal", arguments.causal, "The model's calls are causal, whatever the layout");
  flag(show, "--full", arguments.full, "Draw layouts that fit no terminal");
  flag(show, "--json", arguments.json, "Print the layout as JSON");
  overrides_.emplace_back(show, arguments.config).common();
}

void Definition::define_validate() {
  CLI::App& app =
      begin(app_, "validate", "Check a configuration and report every problem at once", kValidateExamples, validate_);
  ValidateArguments& validate = validate_->arguments;
  CLI::Option* file =
      file_or_config(app, validate.config.file, "Configuration, JSON, TOML or YAML; - is JSON from standard input");
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
  Overrides& keys = overrides_.emplace_back(app, validate.config);
  keys.text("--device", "capstan.run.device", "cpu|cuda|TYPE",
            "Device that the run is checked for, also where this machine has none; the device here without it");
  keys.common();
}

void Definition::define_schema() {
  CLI::App& app = begin(app_, "schema", "Print one JSON Schema for the configuration and every installed plugin",
                        kSchemaExamples, schema_);
  plugin_path(app, schema_->arguments.plugin_paths);
  flag(app, "--reference", schema_->arguments.reference, "Print the reference page of the language instead");
}

void Definition::define_report() {
  CLI::App& app = begin(app_, "report", "Write a page with plots of a run's metrics, which opens offline",
                        kReportExamples, report_);
  text_option(app, "run", report_->arguments.run, "RUN",
              "The folder of the run's csv_monitor, or of a search of capstan tune")
      ->required();
  text_option(app, "--out", report_->arguments.out, "FILE", "The page; RUN/report.html without it");
}

void Definition::define_upgrade() {
  CLI::App& app =
      begin(app_, "upgrade", "Write a configuration with today's spellings; comments stay", kUpgradeExamples, upgrade_);
  file_or_config(app, upgrade_->arguments.file, "Configuration, JSON");
  flag(app, "--in-place", upgrade_->arguments.in_place, "Change the file instead of printing the new text");
}

void Definition::define_elastic() {
  CLI::App& app =
      begin(app_, "elastic", "Compute the elastic batch and the world sizes that it fits", kElasticExamples, elastic_);
  ElasticArguments& elastic = elastic_->arguments;
  file_or_config(app, elastic.config.file, "Configuration, JSON, TOML or YAML");
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

void Definition::define_data() {
  CLI::App& data = *app_.add_subcommand("data", "Make and convert files of tokens, and look at them");
  data.require_subcommand(1);
  CLI::App& convert =
      begin(data, "convert", "Write tokens as another kind of file", kDataConvertExamples, data_convert_);
  DataConvertArguments& to = data_convert_->arguments;
  convert.add_option("inputs", to.inputs, "What to read, one after another; of a folder all files")
      ->type_name("FILE")
      ->required();
  choice_option(convert, "--from", to.from, token_formats(), "What it is; by the names of the files without it", false);
  choice_option(convert, "--to", to.to, {"bytes", "uint16", "uint32", "indexed"}, "What to write", true);
  text_option(convert, "--out", to.out, "FILE|NAME", "The file; NAME of NAME.idx and NAME.bin for indexed")->required();
  text_option(convert, "--key", to.key, "NAME", "jsonl, parquet, arrow: the member that holds a text; text without it");
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
  processes_option(convert, to.processes);
  flag(convert, "--force", to.force, "Replace what is there");
  define_data_tokenize(data);
  define_data_chat(data);
  define_data_show(data);
  define_data_stats(data);
}

void Definition::define_data_tokenize(CLI::App& data) {
  CLI::App& app =
      begin(data, "tokenize", "Turn text into tokens with a tokenizer.json", kDataTokenizeExamples, data_tokenize_);
  DataTokenizeArguments& to = data_tokenize_->arguments;
  app.add_option("inputs", to.inputs,
                 "Text, one document a file or, of .jsonl, .parquet and .arrow, a row; of a folder all files")
      ->type_name("FILE")
      ->required();
  text_option(app, "--tokenizer", to.tokenizer, "FOLDER|FILE", "tokenizer.json, or a folder that has it")->required();
  text_option(app, "--out", to.out, "FILE.bin|NAME.idx", "Tokens alone; or documents, in NAME.idx and NAME.bin")
      ->required();
  choice_option(app, "--from", to.from, {"text", "jsonl", "parquet", "arrow"},
                "What the files are; by their names without it", false);
  text_option(app, "--key", to.key, "NAME", "jsonl, parquet, arrow: the member that holds a text; text without it");
  text_option(app, "--end-token", to.end_token, "TEXT|ID|none",
              "The token behind each document; eos_token of tokenizer_config.json without it");
  flag(app, "--special-tokens", to.special_tokens, "Add the special tokens that the tokenizer puts around a text");
  flag(app, "--replace-invalid", to.replace_invalid, "text: write U+FFFD in place of bytes that are not UTF-8");
  flag(app, "--verify", to.verify, "Decode all tokens, and compare with the text");
  processes_option(app, to.processes);
  flag(app, "--force", to.force, "Replace what is there");
}

void Definition::define_data_chat(CLI::App& data) {
  CLI::App& app =
      begin(data, "chat", "Turn conversations into tokens with a model's chat template", kDataChatExamples, data_chat_);
  DataChatArguments& to = data_chat_->arguments;
  app.add_option("inputs", to.inputs, "Rows of .jsonl, .parquet or .arrow, a conversation each; of a folder all files")
      ->type_name("FILE")
      ->required();
  text_option(app, "--tokenizer", to.tokenizer, "FOLDER|FILE", "tokenizer.json, or a folder that has it")->required();
  text_option(app, "--out", to.out, "NAME.idx",
              "Conversations in NAME.idx and NAME.bin, and the loss mask in NAME.loss")
      ->required();
  text_option(app, "--chat-template", to.chat_template, "FILE",
              "The template; without it chat_template.jinja or tokenizer_config.json of the tokenizer's folder");
  choice_option(app, "--loss", to.loss, {"assistant", "completion", "all"},
                "Which tokens the loss counts; those of the assistant without it", false);
  app.add_option_function<std::string>(
         "--pack",
         [&to](const std::string& given) {
           to.pack = whole_number("--pack", given);
           if (to.pack < 2 || to.pack > std::numeric_limits<std::int32_t>::max()) {
             throw UsageError("--pack: must be 2 to 2,147,483,647, got " + given + ".");
           }
         },
         "Put short rows of data together into rows of so many tokens")
      ->type_name("LENGTH")
      ->take_last();
  choice_option(app, "--long", to.too_long, {"cut", "drop"},
                "With --pack: what becomes of rows of data that are longer; cut without it", false);
  text_option(app, "--key", to.key, "NAME", "The member that holds the messages; by the members of a row without it");
  text_option(app, "--end-token", to.end_token, "TEXT|ID|none",
              "A token behind each row of data; without it none behind conversations, eos_token behind texts");
  flag(app, "--skip-bad", to.skip_bad, "Leave out and count rows that cannot be used, in place of an error");
  flag(app, "--force", to.force, "Replace what is there");
}

void Definition::define_plugins() {
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
  text_option(check, "--device", check_->arguments.device, "TYPE",
              "Try components for an accelerator there; emulated: on every machine, and strictly");
  text_option(check, "--beside", check_->arguments.beside, "FILE",
              "With --device: compare updates with those of this file's optimizers for the CPU");
  flag(check, "--in-process", check_->arguments.in_process, "No processes of their own: for the debugger");
  flag(check, "--json", check_->arguments.json, "Print the results as JSON");
  flag(check, "--verify", check_->arguments.verify,
       "Then train with its optimizers, schedules and models in every way, as 'capstan verify' does");
  text_option(check, "--html", check_->arguments.html, "FILE", "With --verify: write a page with badges there");
  CLI::App& install = begin(plugins, "install", "Copy plugins to where they are always found, and pin their bytes",
                            kInstallExamples, install_);
  text_option(install, "source", install_->arguments.source, "FILE|FOLDER", "A plugin's .so file, or a folder of them")
      ->required();
  text_option(install, "--to", install_->arguments.folder, "DIR",
              "The folder; ~/.local/share/capstan/plugins without it");
  flag(install, "--force", install_->arguments.force,
       "Replace files of the same names, and allow a second plugin for a type");
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

void Definition::define_doctor() {
  CLI::App& app = begin(app_, "doctor", "Show what this machine has, what is missing and how to get it", "", doctor_);
  plugin_path(app, doctor_->arguments.plugin_paths);
  flag(app, "--json", doctor_->arguments.json, "Print the findings as JSON");
}

}  // namespace capstan::cli
