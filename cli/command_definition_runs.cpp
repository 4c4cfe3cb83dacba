// The commands that train, or work on what a training read and wrote.

#include <algorithm>

#include "cli/command_definition.hpp"
#include "cli/help_texts.hpp"

namespace capstan::cli {
namespace {

/// The options of train and of tune's --run.
void saving_options(Overrides& keys) {
  keys.integer("--save-every", "capstan.run.save_every", "Steps between checkpoints; 0: one at the end");
  keys.integer("--keep", "capstan.run.keep", "This run's newest checkpoints that are kept; 0: all");
  keys.on("--overwrite", "capstan.run.overwrite", "Save into a folder that holds checkpoints of another run");
}

void evaluation_options(Overrides& keys) {
  keys.integer("--eval-every", "capstan.run.eval_every", "Steps between evaluations; 0: one at the end");
  keys.on("--keep-best", "capstan.run.keep_best",
          "Save and keep the checkpoint with the lowest evaluation loss, DIR:best");
  keys.integer("--patience", "capstan.run.patience",
               "Evaluations without a lower loss that end the training; 0: none do");
}

void sample_options(Overrides& keys) {
  keys.integer("--sample-every", "capstan.run.sample_every",
               "Steps between texts that the model writes, also before the first step and at the end; 0: none");
  keys.list("--sample-prompts", "capstan.run.sample_prompts", "The texts that it continues", "TEXT");
}

}  // namespace

void Definition::define_train() {
  CLI::App& app = begin(app_, "train", "Train a model", kTrainExamples, train_);
  TrainArguments& train = train_->arguments;
  config_option(app, train.config);
  Overrides& keys = overrides_.emplace_back(app, train.config);
  keys.model("Model, for instance gpt:tiny", /*begins=*/true);
  keys.list("--data", "capstan.data.path", "Files or folders to train on: text as bytes, .bin as 16-bit tokens");
  keys.text("--device", "capstan.run.device", "cpu|cuda|TYPE",
            "Device to train on; a GPU where there is one without it");
  keys.integer("--steps", "capstan.run.steps", "Steps to train, counted from the beginning of the run");
  keys.text("--save", "capstan.run.save_dir", "DIR", "Folder for checkpoints");
  saving_options(keys);
  text_option(app, "--resume", train.resume, "DIR[:TAG]", "Continue from a checkpoint, the latest without TAG");
  flag(app, "--fresh-optimizer", train.fresh_optimizer,
       "With --resume: begin the optimizer's states anew, or with another optimizer")
      ->needs("--resume");
  flag(app, "--fresh-schedule", train.fresh_schedule, "With --resume: begin the schedule anew")->needs("--resume");
  text_option(app, "--init-from", train.init_from, "PATH",
              "Start from the weights of a safetensors file, a checkpoint or a folder of transformers")
      ->excludes("--resume");
  keys.text("--teacher", "capstan.teacher.path", "PATH",
            "Checkpoint (DIR[:TAG]) or safetensors file that layer reduction takes layers from");
  keys.list("--eval-data", "capstan.data.eval_path", "Files or folders to evaluate on");
  evaluation_options(keys);
  sample_options(keys);
  keys.integer("--seed", "capstan.run.seed", "Seed of initial values, data order and dropout");
  keys.integer("--seq", "capstan.data.sequence_length", "Tokens a sample; the model's own length without it");
  app.add_flag_function(
      "--no-progress", [&train](std::int64_t) { train.progress = false; }, "No progress bar, also on a terminal");
  text_option(app, "--report", train.report, "WHAT",
              "At the end, comms: what processes sent to each other; stragglers: and which of them came late")
      ->check(CLI::IsMember({"comms", "stragglers"}));
  keys.common();
}

void Definition::define_tune() {
  CLI::App& app = begin(app_, "tune", "Search the fastest configuration by short trials", kTuneExamples, tune_);
  TuneArguments& tune = tune_->arguments;
  config_option(app, tune.config);
  count_option(app, "-n,--processes,--world", tune.processes, "Processes of a trial; 1 without it");
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
  keys.model("Model, for instance gpt:tiny", /*begins=*/true);
  keys.list("--data", "capstan.data.path", "Files or folders to train on");
  keys.text("--device", "capstan.run.device", "cpu|cuda|TYPE",
            "Device to train on; a GPU where there is one without it");
  keys.integer("--steps", "capstan.run.steps", "Steps to train with --run");
  keys.text("--save", "capstan.run.save_dir", "DIR", "Folder for checkpoints of --run");
  saving_options(keys);
  text_option(app, "--init-from", tune.init_from, "PATH", "Weights that --run starts from");
  keys.list("--eval-data", "capstan.data.eval_path", "Files or folders to evaluate on with --run");
  evaluation_options(keys);
  keys.integer("--seed", "capstan.run.seed", "Seed of initial values, data order, dropout and the tuner");
  keys.integer("--seq", "capstan.data.sequence_length", "Tokens a sample; the model's own length without it");
  app.add_flag_function(
      "--no-progress", [&tune](std::int64_t) { tune.progress = false; }, "No progress bar, also on a terminal");
  keys.common();
  app.prefix_command();
}

void Definition::define_launch() {
  CLI::App& app = begin(app_, "launch", "Run a command in several processes on this host", kLaunchExamples, launch_);
  const auto take = [this](const std::string& name, const std::string& given) {
    const std::int64_t count = whole_number(name, given);
    if (count < 0 || count > 1024) throw UsageError(name + ": 1 to 1024 processes, got " + given + ".");
    launch_->arguments.processes = static_cast<int>(count);
    launch_->arguments.witness = count == 0;
  };
  launcher_names(
      app,
      app.add_option_function<std::string>(
             "-n,--processes", [take](const std::string& given) { take("-n", given); },
             "Processes to start; with --elastic MAX of them without it; 0, with --rdzv: only to decide with "
             "other hosts. --nproc-per-node and --num_gpus of other launchers are taken as well")
          ->type_name("N")
          ->take_last(),
      take);
  app.add_option_function<std::string>(
         "--elastic",
         [this](const std::string& given) {
           const std::size_t colon = given.find(':');
           if (colon == std::string::npos) throw UsageError("--elastic: MIN:MAX, for instance 1:4, got " + given + ".");
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
  count_option(app, "--spares", launch_->arguments.spares, "With --elastic: processes that wait to replace a lost one");
  app.add_option_function<std::string>(
         "--rdzv",
         [this](const std::string& given) {
           launch_->arguments.rdzv = LauncherAddress::list_of(given);
           if (!launch_->arguments.rdzv.empty()) return;
           throw UsageError("--rdzv: HOST:PORT, or several of these between commas, for instance node1:29400, got " +
                            given + ".");
         },
         "With --elastic on several hosts: where the launchers meet; the same on all, the first leads")
      ->type_name("HOST:PORT,...")
      ->take_last();
  text_option(app, "--rdzv-secret-file", launch_->arguments.rdzv_secret_file, "FILE",
              "With --rdzv: a file of yours alone that holds the secret of all launchers; CAPSTAN_RDZV_SECRET holds it "
              "as well");
  text_option(app, "-c,--config", launch_->arguments.config.file, "FILE",
              "With --elastic and a program of yours: the configuration that the program trains with");
  app.add_flag("--status", launch_->arguments.status,
               "Show the elastic launches on this host, or that at --rdzv, and start nothing");
  app.prefix_command();
}

void Definition::define_eval() {
  CLI::App& app = begin(app_, "eval", "Evaluate a checkpoint", kEvalExamples, eval_);
  EvalArguments& eval = eval_->arguments;
  config_option(app, eval.config);
  Overrides& keys = overrides_.emplace_back(app, eval.config);
  keys.model("Model, for instance gpt:tiny", /*begins=*/false);
  keys.text("--device", "capstan.run.device", "cpu|cuda|TYPE", "Device to run on; a GPU where there is one without it");
  keys.list("--data", "capstan.data.eval_path", "Files or folders to evaluate on");
  text_option(app, "--checkpoint", eval.checkpoint, "DIR[:TAG]", "Checkpoint, the latest without TAG");
  text_option(app, "--init-from", eval.init_from, "PATH",
              "Weights of a safetensors file, or of a folder of transformers, instead of a checkpoint")
      ->excludes("--checkpoint");
  keys.integer("--seq", "capstan.data.sequence_length", "Tokens a sample; the model's own length without it");
  keys.common();
}

void Definition::define_generate() {
  CLI::App& app = begin(app_, "generate", "Continue prompts with a model", kGenerateExamples, generate_);
  GenerateArguments& generate = generate_->arguments;
  config_option(app, generate.config);
  Overrides& keys = overrides_.emplace_back(app, generate.config);
  keys.text("--model", "capstan.model", "TYPE[:SIZE]", "Model, for instance decoder");
  keys.text("--device", "capstan.run.device", "cpu|cuda|TYPE", "Device to run on; a GPU where there is one without it");
  text_option(app, "--checkpoint", generate.checkpoint, "DIR[:TAG]", "Checkpoint, the latest without TAG");
  text_option(app, "--init-from", generate.init_from, "PATH",
              "Weights of a safetensors file, or of a folder of transformers, instead of a checkpoint")
      ->excludes("--checkpoint");
  text_option(app, "--prompt", generate.prompt, "TEXT", "The prompt");
  text_option(app, "--ids", generate.ids, "ID,ID,...", "The tokens of the prompt")->excludes("--prompt");
  text_option(app, "--prompts", generate.prompts, "FILE", "Prompts, a JSON object with text or ids on each line")
      ->excludes("--prompt")
      ->excludes("--ids");
  app.add_flag("--chat", generate.chat,
               "Answer the prompt as a user's message, by the model's chat template; messages from standard input "
               "without --prompt")
      ->excludes("--ids")
      ->excludes("--prompts");
  text_option(app, "--tokenizer", generate.tokenizer, "PATH",
              "Folder with tokenizer.json, or GGUF file; what came with the weights without it");
  count_option(app, "--max-new", generate.max_new, "New tokens at most; 64 without it");
  count_option(app, "--batch", generate.batch, "Prompts of a file to continue together, at most 64; 8 without it")
      ->needs("--prompts");
  app.add_option("--temperature", generate.temperature,
                 "Divides the logits before a token is drawn; 0, the likeliest token, without it")
      ->type_name("T");
  app.add_option("--top-k", generate.top_k, "Draw from the K likeliest tokens")->type_name("K");
  app.add_option("--top-p", generate.top_p, "Draw from the likeliest tokens whose probabilities reach P")
      ->type_name("P");
  keys.integer("--seed", "capstan.run.seed", "Seed of the draws");
  text_option(app, "--stop", generate.stop, "ID,ID,...",
              "Tokens that end a sequence; eos_token_id of a decoder without it");
  keys.common();
}

void Definition::define_analyze() {
  CLI::App& app = begin(app_, "analyze", "Measure every sample of the data, for curricula", kAnalyzeExamples, analyze_);
  AnalyzeArguments& analyze = analyze_->arguments;
  config_option(app, analyze.config);
  Overrides& keys = overrides_.emplace_back(app, analyze.config);
  keys.model("Model, which tells the vocabulary and the length of a sample", /*begins=*/false);
  keys.list("--data", "capstan.data.path", "Files or folders to analyse");
  keys.integer("--seq", "capstan.data.sequence_length", "Tokens a sample; the model's own length without it");
  app.add_option(
         "--metric", analyze.metrics,
         "seqlen, total_vocab_freq, vocab_rarity (without it), seqlen_vocab_rarity, or that of a plugin; may be "
         "repeated. Parameters: TYPE:{\"name\": value}")
      ->type_name("TYPE")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  text_option(app, "--out", analyze.out, "DIR", "Folder for the indices of the metrics")->required();
  count_option(app, "-n,--processes", analyze.processes, "Processes that measure");
  keys.common();
}

void Definition::define_export() {
  CLI::App& app = begin(app_, "export", "Write a checkpoint's weights for other programs", kExportExamples, export_);
  ExportArguments& arguments = export_->arguments;
  text_option(app, "--checkpoint", arguments.checkpoint, "DIR[:TAG]", "Checkpoint, the latest without TAG")->required();
  choice_option(app, "--to", arguments.format, {"pt", "safetensors", "hf", "gguf"},
                "Format: a file, or with hf a folder for transformers", true);
  flag(app, "--compressed", arguments.compressed,
       "Weights that compression_training rounds as the codes that were trained");
  text_option(app, "--out", arguments.out, "PATH",
              "The file or folder to write; older files of the same names are replaced")
      ->required();
  choice_option(app, "--dtype", arguments.dtype, {"float32", "bfloat16", "float16", "q8_0"},
                "Convert floating-point values, q8_0 for GGUF alone; as saved without it", false);
  plugin_path(app, arguments.plugin_paths);
}

}  // namespace capstan::cli
