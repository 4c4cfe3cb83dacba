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
               "'capstan' has no command 'trian'. Did you mean 'train'? It has: train, tune, eval, analyze, export, "
               "plan, model, attention, validate, schema, report, upgrade, elastic, launch, data, plugins, doctor.\n"},
        Misuse{{"version"}, "'capstan' has no command 'version'. Did you mean '--version'? It has: train, "},
        Misuse{{"train", "--stepz", "5"}, "unknown option '--stepz' of 'capstan train'. Did you mean '--steps'?\n"},
        Misuse{{"train", "--save_every=5"},
               "unknown option '--save_every' of 'capstan train'. Did you mean '--save-every'?\n"},
        Misuse{{"train", "--local_rank=0"}, "unknown option '--local_rank' of 'capstan train'.\n"},
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
        Misuse{{"plugins", "inspect"}, "file is required.\n"},
        Misuse{{"plugins", "lst"},
               "'capstan plugins' has no command 'lst'. Did you mean 'list'? It has: list, "
               "inspect, check, install, remove, new.\n"},
        Misuse{{"plugins", "new", "a", "--kind", "scheduler", "--lang", "rust"}, "--lang: rust not in {c,c++}.\n"},
        Misuse{{"plugins", "new", "a", "--kind", "observer", "--lang", "c", "--template", "batch"},
               "--lang excludes --template.\n"},
        Misuse{{"model", "show"}, "model is required.\n"},
        Misuse{{"export", "--checkpoint", "c", "--to", "safetensor", "--out", "o"},
               "--to: must be pt|safetensors|hf|gguf, got 'safetensor'. Did you mean 'safetensors'?\n"}));

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
