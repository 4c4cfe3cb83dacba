#include "cli/command_line.hpp"

#include <gmock/gmock.h>

namespace capstan::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

CommandLine read(std::vector<const char*> words) {
  words.insert(words.begin(), "capstan");
  return read_command_line(static_cast<int>(words.size()), words.data());
}

template <class T>
T arguments(const std::vector<const char*>& words) {
  const CommandLine line = read(words);
  EXPECT_TRUE(line.arguments) << line.text;
  return std::get<T>(line.arguments.value());
}

Json override_of(const ConfigArguments& config, const std::string& path) {
  Json found = "not given";
  for (const auto& [key, value] : config.overrides) {
    if (key == path) found = value;
  }
  return found;
}

TEST(CommandLine, TurnsEveryOptionOfTrainIntoItsKey) {
  const auto train = arguments<TrainArguments>(
      {"train",  "--config", "ds.json",     "--model",    "gpt:tiny",     "--data",       "a",
       "b",      "--steps",  "200",         "--save",     "ckpt",         "--save-every", "50",
       "--keep", "3",        "--eval-data", "c",          "--eval-every", "25",           "--seed",
       "7",      "--seq",    "64",          "--overwrite"});

  EXPECT_EQ(train.config.file, "ds.json");
  EXPECT_EQ(override_of(train.config, "capstan.model"), Json("gpt:tiny"));
  EXPECT_EQ(override_of(train.config, "capstan.data.path"), Json(Json::Array{"a", "b"}));
  EXPECT_EQ(override_of(train.config, "capstan.run.steps"), Json(200));
  EXPECT_EQ(override_of(train.config, "capstan.run.save_dir"), Json("ckpt"));
  EXPECT_EQ(override_of(train.config, "capstan.run.save_every"), Json(50));
  EXPECT_EQ(override_of(train.config, "capstan.run.keep"), Json(3));
  EXPECT_EQ(override_of(train.config, "capstan.run.overwrite"), Json(true));
  EXPECT_EQ(override_of(train.config, "capstan.data.eval_path"), Json(Json::Array{"c"}));
  EXPECT_EQ(override_of(train.config, "capstan.run.eval_every"), Json(25));
  EXPECT_EQ(override_of(train.config, "capstan.run.seed"), Json(7));
  EXPECT_EQ(override_of(train.config, "capstan.data.sequence_length"), Json(64));
}

TEST(CommandLine, OverridesNothingThatWasNotGiven) {
  const auto train = arguments<TrainArguments>({"train"});

  EXPECT_TRUE(train.config.overrides.empty());
  EXPECT_EQ(train.config.file, "");
  EXPECT_TRUE(train.progress);
  EXPECT_FALSE(train.config.lenient);
}

TEST(CommandLine, ReadsTheValuesOfSetAsJsonWhereTheyAreSome) {
  const auto train =
      arguments<TrainArguments>({"train", "--set", "optimizer.params.lr=3e-4", "--set", "csv_monitor.job_name=a=b",
                                 "--set", "bf16.enabled=true", "--set", "optimizer.params.betas=[0.9, 0.95]"});

  EXPECT_EQ(override_of(train.config, "optimizer.params.lr"), Json(3e-4));
  EXPECT_EQ(override_of(train.config, "csv_monitor.job_name"), Json("a=b"));
  EXPECT_EQ(override_of(train.config, "bf16.enabled"), Json(true));
  EXPECT_EQ(override_of(train.config, "optimizer.params.betas"), Json(Json::Array{0.9, 0.95}));
}

TEST(CommandLine, LetsSetWinOverTheOptionOfTheSameKey) {
  const auto train = arguments<TrainArguments>({"train", "--set", "capstan.run.steps=5", "--steps", "10"});

  EXPECT_EQ(train.config.overrides.back(), (std::pair<std::string, Json>("capstan.run.steps", 5)));
}

TEST(CommandLine, TakesTheLastOfAnOptionThatIsGivenTwice) {
  const auto train =
      arguments<TrainArguments>({"train", "--steps", "5", "--config", "a", "--config", "b", "--steps", "9"});

  EXPECT_EQ(train.config.file, "b");
  EXPECT_EQ(override_of(train.config, "capstan.run.steps"), Json(9));
}

TEST(CommandLine, TakesFlagsAndRepeatedPluginPaths) {
  const auto train = arguments<TrainArguments>(
      {"train", "--plugin-path", "p", "--plugin-path", "q", "--lenient", "--no-progress", "--resume", "ckpt:best"});

  EXPECT_EQ(train.config.plugin_paths, (std::vector<std::string>{"p", "q"}));
  EXPECT_TRUE(train.config.lenient);
  EXPECT_FALSE(train.progress);
  EXPECT_EQ(train.resume, "ckpt:best");
}

TEST(CommandLine, ReadsTheOtherCommands) {
  EXPECT_EQ(arguments<ValidateArguments>({"validate", "a.json", "--world", "8", "--json"}).world, 8);
  EXPECT_EQ(arguments<PluginsInspectArguments>({"plugins", "inspect", "x.so"}).file, "x.so");
  EXPECT_EQ(arguments<ModelShowArguments>({"model", "show", "gpt:tiny"}).model, "gpt:tiny");
  EXPECT_TRUE(arguments<PluginsInstallArguments>({"plugins", "install", "x.so", "--force"}).force);
  EXPECT_EQ(arguments<PluginsRemoveArguments>({"plugins", "remove", "acme-x", "--from", "d"}).folder, "d");
  EXPECT_EQ(arguments<PluginsNewArguments>({"plugins", "new", "a", "--kind", "scheduler", "--lang", "c"}).lang, "c");
  EXPECT_TRUE(arguments<PluginsListArguments>({"plugins", "list", "--json"}).json);
  EXPECT_TRUE(arguments<DoctorArguments>({"doctor", "--json"}).json);
  EXPECT_EQ(arguments<EvalArguments>({"eval", "--checkpoint", "ckpt", "--data", "t.txt"}).checkpoint, "ckpt");
  EXPECT_EQ(arguments<ExportArguments>({"export", "--checkpoint", "c", "--to", "pt", "--out", "o"}).format, "pt");
}

struct Misuse {
  std::vector<const char*> words;
  const char* message;
};

class CommandLineMisuse : public ::testing::TestWithParam<Misuse> {};

TEST_P(CommandLineMisuse, IsOneSentenceAndExitCodeTwo) {
  const CommandLine line = read(GetParam().words);

  EXPECT_FALSE(line.arguments);
  EXPECT_EQ(line.exit_code, 2);
  EXPECT_THAT(line.text, StartsWith(std::string("capstan: error: ") + GetParam().message));
  EXPECT_THAT(line.text, HasSubstr(" --help' lists what there is.\n"));
}

INSTANTIATE_TEST_SUITE_P(
    All, CommandLineMisuse,
    ::testing::Values(
        Misuse{{"trian"},
               "'capstan' has no command 'trian'. Did you mean 'train'? It has: train, tune, eval, generate, analyze, "
               "export, plan, verify, checkpoint, model, attention, validate, schema, report, upgrade, elastic, "
               "launch, data, "
               "plugins, "
               "doctor.\n"},
        Misuse{{"train", "--stepz", "5"}, "unknown option '--stepz' of 'capstan train'. Did you mean '--steps'?\n"},
        Misuse{{"train", "--save_every=5"},
               "unknown option '--save_every' of 'capstan train'. Did you mean '--save-every'?\n"},
        Misuse{{"train", "--local_rank=0"},
               "unknown option '--local_rank' of 'capstan train'. Leave it out: the environment variables RANK, "
               "LOCAL_RANK "
               "and WORLD_SIZE tell the rank.\n"},
        Misuse{{"train", "data.txt"}, "'capstan train' does not take the argument 'data.txt'.\n"},
        Misuse{{"train", "--steps", "many"}, "--steps: 'many' is not a whole number.\n"},
        Misuse{{"train", "--steps", "1.5"}, "--steps: '1.5' is not a whole number.\n"},
        Misuse{{"train", "--steps", "99999999999999999999"},
               "--steps: '99999999999999999999' is not a whole number.\n"},
        Misuse{
            {"train", "--set", "lr"},
            "--set: 'lr' is not an assignment. Write it as key.path=value, for instance optimizer.params.lr=3e-4.\n"},
        Misuse{{"train", "--resume", "a", "--init-from", "b"}, "--resume excludes --init-from.\n"},
        Misuse{{"validate", "a.json", "--world", "0"}, "--world: must be 1 or more, got 0.\n"},
        Misuse{{"help", "trian"}, "'capstan' has no command 'trian'. Did you mean 'train'? It has: train, "},
        Misuse{{"help", "plugins", "lst"}, "'capstan plugins' has no command 'lst'. Did you mean 'list'? It has: "},
        Misuse{{"train", "help"}, "'capstan train' does not take the argument 'help'. Did you mean '--help'?\n"},
        Misuse{{"tune", "no_such_program"}, "tune: 'no_such_program' is not a program in PATH.\n"},
        Misuse{{"launch", "-n", "2", "--stepz", "5", "train"}, "unknown option '--stepz' of 'capstan launch'.\n"},
        Misuse{{"launch", "-n", "2", "--steps", "3", "train"},
               "unknown option '--steps' of 'capstan launch'. It is an option of 'capstan train': write it behind "
               "'train'.\n"},
        Misuse{{"launch", "-n", "2", "-c", "a.json", "train"},
               "launch: --config has no effect without --elastic. It is an option of 'capstan train': write it behind "
               "'train'."},
        Misuse{{"launch", "--num_gpus", "two", "train"}, "--num_gpus: 'two' is not a whole number.\n"},
        Misuse{{"launch", "--num_gpus", "2", "-n", "2", "train"},
               "-n and --num_gpus are the same: give one of them.\n"},
        Misuse{{"launch", "-n", "2", "trian"},
               "launch: 'trian' is neither a command of capstan nor a program in PATH. Did you mean 'train'?\n"},
        Misuse{{"launch", "-n", "2", "train.py"},
               "launch: 'train.py' is neither a command of capstan nor a program in PATH. Write python3 train.py to "
               "start a Python program.\n"},
        Misuse{{"launch", "-n", "2", "train", "--stepz", "5"},
               "unknown option '--stepz' of 'capstan train'. Did you mean '--steps'?\n"},
        Misuse{{"launch", "--elastic", "1:2", "train", "--steps", "many"}, "--steps: 'many' is not a whole number.\n"},
        Misuse{{"plugins", "inspect"}, "FILE is required: The plugin's .so file.\n"},
        Misuse{{"plugins", "lst"},
               "'capstan plugins' has no command 'lst'. Did you mean 'list'? It has: list, "
               "inspect, check, install, remove, new.\n"},
        Misuse{{"plugins", "new", "a", "--kind", "scheduler", "--lang", "rust"}, "--lang: rust not in {c,c++}.\n"},
        Misuse{{"plugins", "new", "a", "--kind", "observer", "--lang", "c", "--template", "batch"},
               "--lang excludes --template.\n"},
        Misuse{{"model", "show"},
               "TYPE[:SIZE]|hf:FOLDER|FILE is required: Model, for instance gpt:124m, or a plugin's file.\n"},
        Misuse{{"export", "--to", "pt"},
               "--checkpoint is required: Checkpoint, the latest without TAG.\n"
               "capstan: error: --out is required: The file or folder to write; older files of the same names are "
               "replaced.\n"},
        Misuse{{"train", "ds.json"},
               "'capstan train' does not take the argument 'ds.json'. Did you mean '--config ds.json'?\n"},
        Misuse{{"plan", "/"}, "'capstan plan' does not take the argument '/'.\n"},
        Misuse{{"train", "/"}, "'capstan train' does not take the argument '/'. Did you mean '--data /'?\n"},
        Misuse{{"tune", "ds.json"},
               "tune: 'ds.json' is not a program in PATH. Write --config ds.json for a "
               "configuration.\n"},
        Misuse{{"launch", "2", "train"}, "launch: '2' is not a command. Write -n 2 for the number of processes.\n"},
        Misuse{{"export", "--checkpoint", "c", "--to", "safetensor", "--out", "o"},
               "--to: must be pt|safetensors|hf|gguf, got 'safetensor'. Did you mean 'safetensors'?\n"}));

struct Foreign {
  std::vector<const char*> words;
  const char* advice;
};

class OptionsOfOtherScripts : public ::testing::TestWithParam<Foreign> {};

TEST_P(OptionsOfOtherScripts, AreAnsweredWithWhatToWrite) {
  const CommandLine line = read(GetParam().words);

  EXPECT_EQ(line.exit_code, 2);
  std::string option = GetParam().words[1];
  option = option.substr(0, option.find('='));
  EXPECT_THAT(line.text, StartsWith("capstan: error: unknown option '" + option + "' of 'capstan " +
                                    GetParam().words[0] + "'. " + GetParam().advice + "\n"));
}

INSTANTIATE_TEST_SUITE_P(
    All, OptionsOfOtherScripts,
    ::testing::Values(
        Foreign{{"train", "--lr", "3e-4"}, "Write --set optimizer.params.lr=3e-4."},
        Foreign{{"train", "--lr=high"}, "Write --set optimizer.params.lr=3e-4."},
        Foreign{{"train", "--learning-rate", "1e-3"}, "Write --set optimizer.params.lr=1e-3."},
        Foreign{{"train", "--learning_rate=1e-3"}, "Write --set optimizer.params.lr=1e-3."},
        Foreign{{"train", "--batch-size", "16"}, "Write --set train_micro_batch_size_per_gpu=16."},
        Foreign{{"train", "--per_device_train_batch_size", "8"}, "Write --set train_micro_batch_size_per_gpu=8."},
        Foreign{{"train", "--train_batch_size", "8"}, "Write --set train_batch_size=8."},
        Foreign{{"train", "--gradient_accumulation_steps", "4"}, "Write --set gradient_accumulation_steps=4."},
        Foreign{{"train", "--gradient-accumulation-steps=4"}, "Write --set gradient_accumulation_steps=4."},
        Foreign{{"train", "--epochs", "3"}, "Training is counted in steps here: write --steps N."},
        Foreign{{"train", "--num_train_epochs", "3"}, "Training is counted in steps here: write --steps N."},
        Foreign{{"train", "--max_steps", "100"}, "Write --steps 100."},
        Foreign{{"train", "--warmup_steps", "50"}, "Write --set scheduler.params.warmup_num_steps=50."},
        Foreign{{"train", "--output_dir", "out"}, "Write --save out."},
        Foreign{{"train", "--overwrite_output_dir"}, "Write --overwrite."},
        Foreign{{"train", "--save_steps", "50"}, "Write --save-every 50."},
        Foreign{{"train", "--fp16"}, "Write --set fp16.enabled=true."},
        Foreign{{"train", "--bf16", "True"}, "Write --set bf16.enabled=true."},
        Foreign{{"train", "--mixed_precision", "fp16"}, "Write --set fp16.enabled=true."},
        Foreign{{"train", "--optim", "adamw_torch"}, "Write --set optimizer.type=AdamW."},
        Foreign{{"train", "--adam_beta2", "0.95"}, "Write --set optimizer.params.betas=[0.9,0.999]."},
        Foreign{{"train", "--deepspeed", "ds.json"}, "Write --config ds.json."},
        Foreign{{"train", "--deepspeed_config=ds.json"}, "Write --config ds.json."},
        Foreign{{"train", "--num_gpus", "4"}, "Write capstan launch -n 4 train .. to train in several processes."},
        Foreign{{"train", "-n", "4"}, "Write capstan launch -n 4 train .. to train in several processes."},
        Foreign{{"train", "--resume_from_checkpoint", "out"}, "Write --resume out."},
        Foreign{{"train", "--gradient_checkpointing"}, "Write --set capstan.recompute={}."},
        Foreign{{"train", "--master_port", "1"},
                "It is a launcher's: 'capstan launch -n N train ..' starts the processes of one host; torchrun "
                "--no-python, mpirun or srun start those of several."},
        Foreign{{"train", "--logging_first_step", "1"},
                "It is an option of the transformers Trainer, and nothing here does the same."},
        Foreign{{"validate", "--num_gpus", "2"}, "Write --world 2."},
        Foreign{{"plan", "--nproc_per_node=2"}, "Write --world 2."},
        Foreign{{"plan", "--zero_stage", "3"}, "Write --set zero_optimization.stage=3."},
        Foreign{{"launch", "--lr", "3e-4", "-n", "2"}, "Write --set optimizer.params.lr=3e-4."},
        Foreign{{"tune", "--lr", "3e-4"}, "Write --set optimizer.params.lr=3e-4."}));

TEST(CommandLine, AnswersAllUnknownOptionsAtOnce) {
  EXPECT_EQ(read({"train", "--lr", "3e-4", "--steps", "5", "--output_dir", "out"}).text,
            "capstan: error: unknown option '--lr' of 'capstan train'. Write --set optimizer.params.lr=3e-4.\n"
            "capstan: error: unknown option '--output_dir' of 'capstan train'. Write --save out.\n"
            "'capstan train --help' lists what there is.\n");
}

TEST(CommandLine, TakesTheLaunchersNamesForTheNumberOfProcesses) {
  for (const char* name : {"--nproc-per-node", "--nproc_per_node", "--num_gpus", "--num-gpus"}) {
    EXPECT_EQ(arguments<LaunchArguments>({"launch", name, "2", "train"}).processes, 2) << name;
    EXPECT_EQ(arguments<LaunchArguments>({"launch", (std::string(name) + "=2").c_str(), "train"}).processes, 2) << name;
    EXPECT_EQ(arguments<TuneArguments>({"tune", name, "2"}).processes, 2) << name;
  }
}

TEST(CommandLine, LaunchesProgramsOfThePath) {
  using Words = std::vector<std::string>;
  setenv("PATH", "/nowhere:/bin", 1);
  EXPECT_EQ(arguments<LaunchArguments>({"launch", "-n", "2", "sh", "-c", "echo"}).command,
            (Words{"/bin/sh", "-c", "echo"}));
  EXPECT_EQ(arguments<TuneArguments>({"tune", "sh", "x"}).program, (Words{"/bin/sh", "x"}));
  EXPECT_EQ(arguments<LaunchArguments>({"launch", "-n", "2", "eval", "--checkpoint", "c"}).command.front(), "eval");
  EXPECT_EQ(arguments<LaunchArguments>({"launch", "-n", "2", "./eval"}).command.front(), "./eval");
}

TEST(CommandLine, TakesAShortOptionForTheConfiguration) {
  EXPECT_EQ(arguments<TrainArguments>({"train", "-c", "ds.json"}).config.file, "ds.json");
  EXPECT_EQ(arguments<EvalArguments>({"eval", "-c", "ds.json", "--checkpoint", "c"}).config.file, "ds.json");
}

TEST(CommandLine, TakesTheWordsHelpAndVersion) {
  EXPECT_EQ(read({"help"}).text, read({"--help"}).text);
  EXPECT_EQ(read({"help", "plugins", "list"}).text, read({"plugins", "list", "--help"}).text);
  EXPECT_EQ(read({"version"}).text, read({"--version"}).text);
  EXPECT_THAT(read({"version"}).text, StartsWith("Capstan "));
  EXPECT_EQ(read({"launch", "-n", "2", "train", "--help"}).text, read({"train", "--help"}).text);
  EXPECT_EQ(read({"help", "train"}).exit_code, 0);
}

TEST(CommandLine, HelpNamesKeysDefaultsAndLimits) {
  const auto help = [](std::vector<const char*> words) {
    words.push_back("--help");
    return read(words).text;
  };
  EXPECT_THAT(help({"attention", "show"}), HasSubstr("capstan.data.sequence_length without it"));
  EXPECT_THAT(help({"analyze"}), HasSubstr("seqlen, total_vocab_freq, vocab_rarity (without it), seqlen_vocab_rarity"));
  EXPECT_THAT(help({"train"}), HasSubstr("but near misses of a key stay errors"));
  EXPECT_THAT(help({"train"}), HasSubstr("a second one ends the run at once. Before the first step, even the first "
                                         "one does."));
  EXPECT_THAT(help({"export"}), HasSubstr("older files of the same names are replaced"));
  EXPECT_THAT(help({"validate"}), HasSubstr("- is JSON from standard input"));
  EXPECT_THAT(help({"launch"}), HasSubstr("where the launchers meet"));
  EXPECT_TRUE(arguments<AnalyzeArguments>({"analyze", "--out", "m"}).metrics.empty());
}

TEST(CommandLine, ShowsHelpWithExamplesAndExitCodes) {
  EXPECT_THAT(read({"--help"}).text, HasSubstr("  130  interrupted by Ctrl-C or SIGTERM"));
  for (const char* command : {"train", "eval", "export", "validate"}) {
    const CommandLine line = read({command, "--help"});
    EXPECT_EQ(line.exit_code, 0);
    EXPECT_THAT(line.text, HasSubstr("Example")) << command;
    EXPECT_THAT(line.text, HasSubstr(std::string("Usage: capstan ") + command)) << command;
  }
}

TEST(CommandLine, ShowsTheCommandsWhenNoneIsNamed) {
  const CommandLine line = read({});

  EXPECT_EQ(line.exit_code, 2);
  EXPECT_THAT(line.text, HasSubstr("Train a model"));
  EXPECT_THAT(read({"plugins"}).text, HasSubstr("Usage: capstan plugins"));
}

}  // namespace
}  // namespace capstan::cli
