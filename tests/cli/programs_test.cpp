// The program without LibTorch, as a user starts it.

#include "tests/cli/programs.hpp"

#include <gmock/gmock.h>

#include <algorithm>

#include "core/text/json.hpp"

namespace capstan::cli {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::StartsWith;

constexpr const char* kGoodConfig =
    R"({"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}})";

class Programs : public ::testing::Test {
 protected:
  ProcessResult run(const std::vector<std::string>& words, const ProcessOptions& options = {}) const {
    return run_capstan(folder_, words, options);
  }
  std::string write(const char* name, std::string_view text) const {
    write_bytes(folder_ / name, text);
    return name;
  }
  TemporaryFolder folder_;
};

TEST_F(Programs, HelpGoesToStandardOutputAndMisuseToStandardError) {
  const ProcessResult help = run({"--help"}), misuse = run({"train", "--stepz"});

  EXPECT_EQ(help.exit_code, 0);
  EXPECT_THAT(help.out, HasSubstr("Usage: capstan "));
  EXPECT_EQ(help.err, "");
  EXPECT_EQ(misuse.exit_code, 2);
  EXPECT_EQ(misuse.out, "");
  EXPECT_EQ(misuse.err,
            "capstan: error: unknown option '--stepz' of 'capstan train'. Did you mean '--steps'?\n"
            "'capstan train --help' lists what there is.\n");
}

TEST_F(Programs, HelpPromisesOneValueForEachOptionThatMayBeRepeated) {
  const std::string help = run({"train", "--help"}).out;

  EXPECT_THAT(help, HasSubstr("  --plugin-path DIR     "));
  EXPECT_THAT(help, HasSubstr("  --set KEY.PATH=VALUE     "));
}

TEST_F(Programs, VersionNamesTheBuildOfLibTorch) {
  EXPECT_THAT(run({"--version"}).out, MatchesRegex("Capstan 0\\.1\\.0\nplugin ABI 1\\.0\n"
                                                   "LibTorch 2\\.11\\.0 \\(build [0-9a-f]{40}\\) in /.*/lib\n"));
}

TEST_F(Programs, ListingInspectingAndValidatingLoadNoLibTorchAndNoPlugin) {
  write("good.json", kGoodConfig);
  const std::string plugin = CAPSTAN_TEST_BUILD_DIR "/lib/capstan/plugins/optimizers/libcapstan_optimizer_adam.so";
  for (const std::vector<std::string>& words : {std::vector<std::string>{"plugins", "list"},
                                                {"plugins", "inspect", plugin},
                                                {"validate", "good.json"},
                                                {"--version"},
                                                {"--help"}}) {
    const ProcessResult result = run(words, {.environment = {"LD_DEBUG=files"}});
    EXPECT_EQ(result.exit_code, 0) << result.out;
    const auto loaded = [&](const char* file) { return result.err.find(file) != std::string::npos; };
    EXPECT_TRUE(loaded("libcapstan_config.so"));
    for (const char* file : {"libtorch", "libc10", "libcapstan.so", "libcapstan_optimizer"})
      EXPECT_FALSE(loaded(file)) << file;
  }
}

TEST_F(Programs, HandsOtherCommandsOverInTheSameProcess) {
  const ProcessResult result =
      run({"export", "--checkpoint", "nowhere", "--to", "pt", "--out", "x.pt"}, {.environment = {"LD_DEBUG=files"}});

  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find("libtorch_cpu.so"), std::string::npos);
  EXPECT_NE(result.err.find("capstan: error: checkpoints in 'nowhere': there is no such folder.\n"), std::string::npos);
}

TEST_F(Programs, SaysWhatLacksWhenTheEngineIsNotInstalled) {
  std::filesystem::create_directories(folder_ / "bin");
  std::filesystem::create_directory_symlink(CAPSTAN_TEST_BUILD_DIR "/lib", folder_ / "lib");
  std::filesystem::copy_file(kCapstan, folder_ / "bin/capstan");

  const ProcessResult result = run_process({(folder_ / "bin/capstan").string(), "doctor"});

  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.err, "capstan: error: " + std::filesystem::canonical(folder_.path()).string() +
                            "/libexec/capstan-engine: cannot be started: No such file or directory. This command needs "
                            "it; install Capstan as a whole.\n");
}

TEST_F(Programs, TheEngineDoesNotRunTheOtherProgramsCommands) {
  for (const std::vector<std::string>& words : {std::vector<std::string>{"list"}, {"check", "x.so"}}) {
    std::vector<std::string> line = {kEngine, "plugins"};
    line.insert(line.end(), words.begin(), words.end());
    const ProcessResult result = run_process(line);

    EXPECT_EQ(result.exit_code, 1);
    EXPECT_EQ(result.err, "capstan: error: capstan-engine does not run this command. Start it as 'capstan'.\n");
  }
}

TEST_F(Programs, ChecksPluginsWithTheConformanceProgram) {
  const std::string plugin = CAPSTAN_TEST_BUILD_DIR "/lib/capstan/plugins/monitors/libcapstan_monitor_csv.so";
  const ProcessResult result = run({"plugins", "check", plugin, "--only", "loading"});
  const ProcessResult misused = run_process({kConformance, "plugins", "list"});

  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_THAT(result.out, HasSubstr("passed  loading/load\n"));
  EXPECT_EQ(misused.err, "capstan: error: capstan-conformance runs 'plugins check' only. Start it as 'capstan'.\n");
}

TEST_F(Programs, SaysHowToGetTheConformanceProgramThatTrainingDoesNotBuild) {
  std::filesystem::create_directories(folder_ / "bin");
  std::filesystem::create_directory_symlink(CAPSTAN_TEST_BUILD_DIR "/lib", folder_ / "lib");
  std::filesystem::copy_file(kCapstan, folder_ / "bin/capstan");

  const ProcessResult result = run_process({(folder_ / "bin/capstan").string(), "plugins", "check", "x.so"});

  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.err, "capstan: error: " + std::filesystem::canonical(folder_.path()).string() +
                            "/libexec/capstan-conformance: cannot be started: No such file or directory. This command "
                            "needs it; scripts/train builds without it. Build everything, as scripts/test does, and "
                            "install again.\n");
}

TEST_F(Programs, ValidateAcceptsAGoodConfiguration) {
  const ProcessResult result = run({"validate", write("good.json", kGoodConfig)});

  EXPECT_EQ(result.exit_code, 0) << result.out;
  EXPECT_THAT(result.out, HasSubstr("good.json: valid"));
}

TEST_F(Programs, ValidateReportsEveryProblemWithItsPlaceAndExitCodeThree) {
  const std::string file =
      write("bad.json", "{\"train_batch_size\": 8,\n \"gradient_cliping\": 1,\n \"steps_per_print\": \"often\"}");
  const ProcessResult result = run({"validate", file});

  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.out, HasSubstr("error: bad.json:2:"));
  EXPECT_THAT(result.out, HasSubstr("gradient_clipping"));
  EXPECT_THAT(result.out, HasSubstr("error: bad.json:3:"));
  EXPECT_THAT(result.out, HasSubstr("bad.json: not valid: 2 errors"));
}

TEST_F(Programs, ValidatePrintsJsonOnRequest) {
  const ProcessResult result = run({"validate", write("bad.json", "{\"gradient_cliping\": 1}"), "--json"});
  const Json json = Json::parse(result.out);

  EXPECT_EQ(result.exit_code, 3);
  EXPECT_EQ(json.at("valid"), Json(false));
  const Json::Array& problems = json.at("problems").as_array();
  const auto problem = std::find_if(problems.begin(), problems.end(),
                                    [](const Json& one) { return one.at("path") == Json("gradient_cliping"); });
  ASSERT_NE(problem, problems.end());
  EXPECT_EQ(problem->at("severity").as_string(), "error");
  EXPECT_EQ(problem->at("line").as_integer(), 1);
}

TEST_F(Programs, ValidateTakesValuesFromTheCommandLine) {
  const ProcessResult result = run({"validate", write("good.json", kGoodConfig), "--set", "gradient_clipping=-1"});

  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.out, HasSubstr("gradient_clipping"));
}

TEST_F(Programs, ValidateNamesAMissingFile) {
  const ProcessResult result = run({"validate", "missing.json"});

  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err, HasSubstr("'missing.json' is neither an existing file nor base64 of a configuration."));
}

TEST_F(Programs, ValidateReadsAConfigurationFromStandardInput) {
  write("bad.json", "{\"train_batch_size\": 8,\n \"gradient_cliping\": 1}");
  ProcessOptions options;
  options.folder = folder_.path();
  const ProcessResult result = run_process({"/bin/sh", "-c", "cat bad.json | " + kCapstan + " validate -"}, options);

  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.out, HasSubstr("error: standard input:2:2: gradient_cliping: unknown key."));
  EXPECT_THAT(result.out, HasSubstr("standard input: not valid: 1 error"));
}

TEST_F(Programs, ExportRefusesAFolderForAFileAndAFileForAFolder) {
  std::filesystem::create_directory(folder_ / "gpt2");
  const auto to = [&](const std::string& format, const std::string& out) {
    const ProcessResult result = run({"export", "--checkpoint", "none", "--to", format, "--out", out});
    EXPECT_EQ(result.exit_code, 2);
    return result.err;
  };
  EXPECT_EQ(to("gguf", "gpt2/"),
            "capstan: error: --out: 'gpt2/' is a folder, and --to gguf writes a file. Name a file, for instance "
            "gpt2/model.gguf.\n");
  EXPECT_EQ(to("hf", write("file", "x")),
            "capstan: error: --out: 'file' is a file, and --to hf writes a folder. Name a folder.\n");
}

TEST_F(Programs, WhatTheCommandLineAloneHasWrongIsExitCodeTwo) {
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"plugins", "new", "Acme", "--kind", "optimizer"},
        {"plugins", "new", "acme-x", "--kind", "optimizer", "--template", "none"},
        {"plugins", "check", "."},
        {"eval", "--data", "text.txt"},
        {"export", "--checkpoint", "c", "--to", "pt", "--compressed", "--out", "o"},
        {"plan", "--model", "gpt:tiny", "--world", "4", "--local-world", "3"},
        {"tune", "/bin/true", "--micro", "1"}}) {
    const ProcessResult result = run(words);
    EXPECT_EQ(result.exit_code, 2) << words[0] << " " << words[1] << ": " << result.err;
  }
}

TEST_F(Programs, PluginsCheckNamesAFileThatIsNotThere) {
  const ProcessResult result = run({"plugins", "check", "nofile.so"});

  EXPECT_EQ(result.exit_code, 4);
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(result.err, "capstan: error: nofile.so: there is no such file.\n");
  EXPECT_EQ(run({"plugins", "check", "."}).err,
            "capstan: error: '.' is a folder. Name a plugin's file, libcapstan_*.so.\n");
}

TEST_F(Programs, PluginsCheckTriesEveryRule) {
  const std::string plugin = CAPSTAN_TEST_BUILD_DIR "/lib/capstan/plugins/schedulers/libcapstan_scheduler_warmup_lr.so";
  const ProcessResult good = run({"plugins", "check", plugin});
  const ProcessResult bad = run({"plugins", "check", write("x.so", "text")});
  const ProcessResult nothing = run({"plugins", "check", plugin, "--only", "no_such_case"});

  EXPECT_EQ(good.exit_code, 0) << good.out;
  EXPECT_THAT(good.out, HasSubstr("passed  scheduler/WarmupLR/"));
  EXPECT_THAT(good.out, ContainsRegex("\n[0-9]+ cases: [0-9]+ passed(, [0-9]+ skipped)?\\.\n$"));
  EXPECT_EQ(bad.exit_code, 4);
  EXPECT_THAT(bad.out, ContainsRegex("\n[0-9]+ cases: [0-9]+ failed, [0-9]+ not tried\\.\n$"));
  EXPECT_EQ(nothing.exit_code, 1);
  EXPECT_THAT(nothing.err, HasSubstr("no case's name contains 'no_such_case'."));
}

TEST_F(Programs, PluginsCheckTakesATimeLimitAndParameters) {
  const std::string plugin = CAPSTAN_TEST_BUILD_DIR "/lib/capstan/plugins/schedulers/libcapstan_scheduler_warmup_lr.so";
  const auto check = [&](const std::string& option, const std::string& value) {
    return run({"plugins", "check", plugin, "--only", "create_defaults", option, value});
  };

  EXPECT_EQ(check("--timeout", "300").exit_code, 0);
  EXPECT_EQ(check("--timeout", "0").exit_code, 2);
  EXPECT_THAT(check("--timeout", "0").err, HasSubstr("capstan: error: --timeout: is 0, must be 1 or more.\n"));
  EXPECT_EQ(check("--params", R"({"warmup_num_steps": 7})").exit_code, 0);
  EXPECT_THAT(check("--params", R"({"warmup_steps": 7})").err,
              HasSubstr("--params: no component of capstan-warmup-lr has a parameter 'warmup_steps'."));
  EXPECT_THAT(check("--params", "[7]").err, HasSubstr("--params: must be an object of parameters, got '[7]'."));
  EXPECT_THAT(check("--params", "{").err, HasSubstr("capstan: error: --params: "));
}

TEST_F(Programs, PluginsListShowsComponentsFoldersAndWhatWasRefused) {
  std::filesystem::create_directory(folder_ / "plugins");
  write_bytes(folder_ / "plugins/libcapstan_optimizer_text.so", "not a library");
  const ProcessResult result = run({"plugins", "list", "--plugin-path", "plugins"});

  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out, HasSubstr("KIND"));
  EXPECT_THAT(result.out, HasSubstr("libcapstan_optimizer_adam.so"));
  EXPECT_THAT(result.out, HasSubstr("Rejected:\n  plugins/libcapstan_optimizer_text.so: not a shared library (no ELF "
                                    "header)."));
  EXPECT_THAT(result.out, HasSubstr("plugins (--plugin-path): 0 plugins"));
}

TEST_F(Programs, PluginsListNamesWhatIsShadowed) {
  std::filesystem::create_directory(folder_ / "plugins");
  std::filesystem::copy_file(CAPSTAN_TEST_BUILD_DIR "/lib/capstan/plugins/optimizers/libcapstan_optimizer_adam.so",
                             folder_ / "plugins/libcapstan_optimizer_mine.so");
  const ProcessResult text = run({"plugins", "list", "--plugin-path", "plugins"});
  const Json json = Json::parse(run({"plugins", "list", "--plugin-path", "plugins", "--json"}).out);

  EXPECT_THAT(text.out, HasSubstr("Shadowed, because an earlier folder has the same:\n  optimizer Adam in "));
  ASSERT_GT(json.at("shadowed").size(), 0u);
  EXPECT_THAT(json.at("shadowed").as_array().front().at("by").as_string(), HasSubstr("libcapstan_optimizer_mine.so"));
}

TEST_F(Programs, PluginsInspectShowsParametersStateAndTier) {
  const std::string plugin = CAPSTAN_TEST_BUILD_DIR "/lib/capstan/plugins/optimizers/libcapstan_optimizer_adam.so";
  const ProcessResult text = run({"plugins", "inspect", plugin});
  const Json json = Json::parse(run({"plugins", "inspect", plugin, "--json"}).out);

  EXPECT_THAT(text.out, HasSubstr("stable (LibTorch 2.11 or newer)"));
  EXPECT_THAT(text.out, HasSubstr("optimizer AdamW"));
  EXPECT_THAT(text.out, HasSubstr("exp_avg"));
  EXPECT_THAT(text.out, HasSubstr("weight_decay"));
  EXPECT_EQ(json.at("name"), Json("capstan-adam"));
}

TEST_F(Programs, PluginsInspectTellsASectionThatSelectsThePluginFromOneThatCannot) {
  const std::string file = "/libcapstan_observer_flops_profiler.so";
  const std::string plugin = CAPSTAN_TEST_BUILD_DIR "/lib/capstan/plugins/observers" + file;
  EXPECT_THAT(run({"plugins", "inspect", plugin}).out, HasSubstr("  selected by the section \"flops_profiler\"\n"));

  std::string bytes = read_bytes(plugin);
  const std::string section = "section = \"flops_profiler\"";
  const auto at = bytes.find(section);
  ASSERT_NE(at, std::string::npos);
  write("altered.so", bytes.replace(at, section.size(), "section = \"comms_logger\"  "));
  EXPECT_THAT(run({"plugins", "inspect", "altered.so"}).out,
              HasSubstr("  never selected by the section \"comms_logger\", which switches on no observer\n"));
}

TEST_F(Programs, PluginsInspectTellsTheOrderOfACompression) {
  const std::string plugin = CAPSTAN_TEST_BUILD_DIR "/tests/bad_plugins/libcapstan_bad_compression.so";
  EXPECT_THAT(run({"plugins", "inspect", plugin}).out, HasSubstr("\ncompression Bad\n  order: 50\n"));
  EXPECT_EQ(Json::parse(run({"plugins", "inspect", plugin, "--json"}).out).at("components").as_array()[0].at("order"),
            Json(50));
}

/// The bytes of the plugin Adam with another text of the same length in its manifest.
std::string altered_adam(const std::string& text, const std::string& other) {
  std::string bytes = read_bytes(CAPSTAN_TEST_BUILD_DIR "/lib/capstan/plugins/optimizers/libcapstan_optimizer_adam.so");
  const auto at = bytes.find(text);
  EXPECT_NE(at, std::string::npos) << text;
  EXPECT_EQ(text.size(), other.size());
  return bytes.replace(at, text.size(), other);
}

TEST_F(Programs, PluginsInspectRefusesAPluginForANewerLibTorch) {
  write("newer.so", altered_adam("min = \"2.11\"", "min = \"2.99\""));
  const ProcessResult result = run({"plugins", "inspect", "newer.so"});

  EXPECT_EQ(result.exit_code, 4);
  EXPECT_THAT(result.out, HasSubstr("capstan-adam 0.1.0"));
  EXPECT_EQ(result.err, "capstan: error: newer.so: needs LibTorch 2.99 or newer, this process runs 2.11.0.\n");
}

TEST_F(Programs, PluginsInspectOfTheManifestAloneIsSilentUnlessItIsWrong) {
  const std::string file = write("open.so", altered_adam("version = \"0.1.0\"", "version = \"0.1.1\""));
  std::filesystem::permissions(folder_ / file, std::filesystem::perms::all);
  EXPECT_EQ(run({"plugins", "inspect", file}).exit_code, 4);  // everybody may write to it
  const ProcessResult right = run({"plugins", "inspect", "--manifest-only", file});
  EXPECT_EQ(right.exit_code, 0);
  EXPECT_EQ(right.out + right.err, "");

  write("wrong.so", altered_adam("version = \"0.1.0\"\nvendor", "verson = \"banana\"\nvendor"));
  const ProcessResult wrong = run({"plugins", "inspect", "--manifest-only", "wrong.so"});
  EXPECT_EQ(wrong.exit_code, 4);
  EXPECT_EQ(wrong.err, "capstan: error: wrong.so: manifest:3:1: verson: unknown key. Did you mean 'version'?\n");
}

TEST_F(Programs, PluginsInspectShowsRulesAndWarnings) {
  write("mute.so", altered_adam("\"elementwise\", \"cpu\"]", "\"elementwise\"       ]"));
  const ProcessResult result = run({"plugins", "inspect", "mute.so"});

  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out, HasSubstr("  rules:\n    not amsgrad or torch_adam "));
  EXPECT_THAT(result.err,
              HasSubstr("mute.so: manifest:11:1: components[0].traits: 'cpu' is missing, so a configuration "
                        "that offloads the optimizer refuses this one."));
}

TEST_F(Programs, PluginsInspectSaysWhereTheFilesAre) {
  const ProcessResult result = run({"plugins", "inspect", "Adam"});

  EXPECT_EQ(result.exit_code, 4);
  EXPECT_EQ(
      result.err,
      "capstan: error: Adam: there is no such file. 'capstan plugins list' shows the files of all plugins that are "
      "found.\n");
}

TEST_F(Programs, PluginsInspectRefusesWhatIsNoPlugin) {
  const ProcessResult result = run({"plugins", "inspect", write("x.so", "text")});

  EXPECT_EQ(result.exit_code, 4);
  EXPECT_EQ(result.err, "capstan: error: x.so: not a shared library (no ELF header).\n");
}

TEST_F(Programs, PluginsNewMakesAProject) {
  const ProcessResult result = run({"plugins", "new", "acme-signum", "--kind", "optimizer"});

  EXPECT_EQ(result.exit_code, 0) << result.err;
  // The last line names the folder where the project's build puts the file: folders are searched one level deep.
  EXPECT_THAT(result.out,
              HasSubstr("Install the SDK, which this build folder lacks; into your home here:\n"
                        "  cmake --install " CAPSTAN_TEST_BUILD_DIR " --component sdk --prefix $HOME/.local\n"
                        "Build and test it, and see it listed:\n"
                        "  cmake -S acme-signum -B acme-signum/build -G Ninja "
                        "-DCMAKE_PREFIX_PATH=$HOME/.local\n"
                        "  cmake --build acme-signum/build\n"
                        "  ctest --test-dir acme-signum/build --output-on-failure\n"
                        "  capstan plugins list --plugin-path acme-signum/build/lib/capstan/plugins\n"));
  EXPECT_THAT(result.out, HasSubstr("made acme-signum:\n"));
  EXPECT_TRUE(std::filesystem::exists(folder_ / "acme-signum/plugin.toml"));
  EXPECT_EQ(run({"plugins", "new", "acme-signum", "--kind", "optimiser"}).exit_code, 2);
}

TEST_F(Programs, DoctorNamesLibTorchPluginsAndTools) {
  const ProcessResult text = run({"doctor"});
  const Json json = Json::parse(run({"doctor", "--json"}).out);

  EXPECT_EQ(text.exit_code, 0) << text.out;
  EXPECT_THAT(text.out, HasSubstr("LibTorch  ok  "));
  EXPECT_THAT(text.out, HasSubstr("capstan-adam"));
  EXPECT_THAT(text.out, ContainsRegex("\n  without LibTorch +ok +capstan-"));
  std::istringstream lines(text.out);
  bool continued = false;
  for (std::string line; std::getline(lines, line); continued = line.starts_with("  stable")) {
    if (continued) {
      EXPECT_THAT(line, StartsWith("                       ")) << "the list of plugins is not wrapped";
    }
    if (line.find("capstan-") != std::string::npos) {
      EXPECT_LE(line.size(), 160u);
    }
  }
  EXPECT_THAT(text.out, HasSubstr("All that training on this machine needs is there."));
  for (const char* group : {"Capstan", "Plugins", "Build tools", "CUDA"}) EXPECT_NE(json.find(group), nullptr) << group;
}

TEST_F(Programs, DoctorSaysThatTheDriverIsTooOldForLibTorchsRuntime) {
  if (run({"doctor"}).out.find("no libtorch_cuda.so") != std::string::npos) GTEST_SKIP() << "LibTorch is for CPUs only";
  const ProcessResult result = run({"doctor"}, {.environment = {"LD_LIBRARY_PATH=" CAPSTAN_TEST_OLD_DRIVER}});

  EXPECT_THAT(result.out,
              ContainsRegex("CUDA versions +optional  the driver is for CUDA 11\\.4,[[:space:]]+LibTorch's runtime is "
                            "[0-9]+\\.[0-9]+; only for CUDA: NVIDIA's driver for CUDA [0-9]+ or newer\n"));
}

TEST_F(Programs, DoctorFailsWhenAPluginWasRefused) {
  std::filesystem::create_directory(folder_ / "plugins");
  write_bytes(folder_ / "plugins/libcapstan_optimizer_text.so", "not a library");
  const ProcessResult result = run({"doctor", "--plugin-path", "plugins"});

  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.out, HasSubstr("not a shared library (no ELF header)"));
  EXPECT_THAT(result.out, HasSubstr("Something that training needs is missing: see above."));
}

}  // namespace
}  // namespace capstan::cli
