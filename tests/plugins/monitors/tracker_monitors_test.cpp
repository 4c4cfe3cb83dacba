// wandb and comet: real offline runs of the real packages, read back with their own tools; and what happens without
// them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "core/errors.hpp"
#include "tests/core/engine/small_model.hpp"
#include "tests/plugins/monitors/monitor_plugin.hpp"
#include "tests/plugins/monitors/tracker_python.hpp"
#include "tests/support/temporary_folder.hpp"

namespace capstan::test {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using ::testing::StrEq;
using ::testing::ThrowsMessage;

const std::string kPlainPython = CAPSTAN_TEST_SOURCE_DIR "/.venv/bin/python";  // has neither tracker

const char* const kRunInfo = R"({"resumed_at": null, "world_size": 4, "model": "gpt \"tiny\"", "parameters": 123,
  "device": "cpu", "config_text": "{\n  \"a\": 1\n}",
  "hparams": [["optimizer.type", "AdamW", "string"], ["optimizer.params.lr", 0.5, "number"],
              ["fp16.enabled", true, "boolean"]]})";

/// Trackers write below the working directory.
class TrackerTest : public ::testing::Test {
 protected:
  TrackerTest() : before_(std::filesystem::current_path()) {
    std::filesystem::current_path(folder_.path());
    for (const char* name : {"WANDB_API_KEY", "WANDB_MODE", "COMET_API_KEY"}) ::unsetenv(name);
    ::setenv("HOME", folder_.path().c_str(), 1);  // nobody's keys
    use_python(kTrackerPython);
  }
  ~TrackerTest() override {
    std::filesystem::current_path(before_);
    ::unsetenv("PYTHONPATH");
  }

  static void use_python(const std::string& python) { ::setenv("CAPSTAN_PYTHON", python.c_str(), 1); }

  /// Puts a package `name` of that version and content before all others.
  void fake_package(const std::string& name, const std::string& version, const std::string& source) const {
    const auto information = folder_ / (name + "-" + version + ".dist-info");
    std::filesystem::create_directories(information);
    write_bytes(information / "METADATA", "Metadata-Version: 2.1\nName: " + name + "\nVersion: " + version + "\n");
    write_bytes(folder_ / (name + ".py"), source);
    ::setenv("PYTHONPATH", folder_.path().c_str(), 1);
    use_python(kPlainPython);
  }

  TemporaryFolder folder_;

 private:
  std::filesystem::path before_;
};

class RealTrackerTest : public TrackerTest {
 protected:
  void SetUp() override { CAPSTAN_NEEDS_TRACKERS(); }
};

std::string text_of(const Json& value) { return value.dump(); }

TEST_F(RealTrackerTest, WandbKeepsMetricsConfigurationAndNamesOffline) {
  {
    MonitorPlugin wandb("wandb", Json::parse(R"({"project": "drum", "group": "winch", "team": "crew"})"),
                        Json::parse(kRunInfo));
    wandb.write({{"Train/Samples/lr", 0.5, 8}, {"größe/損失", NAN, 8}, {"Train/Samples/lr", 0.25, 16}});
    wandb.write({{"Train/Samples/lr", INFINITY, 24}});
    wandb.flush();
    wandb.close();
  }

  const Json run = run_reader("read_wandb.py", folder_.path());
  EXPECT_EQ(run.at("project"), Json("drum"));
  EXPECT_EQ(run.at("group"), Json("winch"));
  EXPECT_EQ(run.at("team"), Json("crew"));
  EXPECT_EQ(run.at("rows"), Json::parse(R"([{"_step": "8", "Train/Samples/lr": "0.5", "größe/損失": "nan"},
                                            {"_step": "16", "Train/Samples/lr": "0.25"},
                                            {"_step": "24", "Train/Samples/lr": "inf"}])"));
  const Json& config = run.at("config");
  EXPECT_EQ(config.at("optimizer.type"), Json("AdamW"));
  EXPECT_EQ(config.at("optimizer.params.lr"), Json(0.5));
  EXPECT_EQ(config.at("fp16.enabled"), Json(true));
  EXPECT_EQ(config.at("run.world_size"), Json(4));
  EXPECT_EQ(config.at("run.model"), Json("gpt \"tiny\""));
  EXPECT_EQ(run.at("finished"), Json(true));
}

TEST_F(RealTrackerTest, WandbKeepsTextsInATableOfEachStep) {
  {
    MonitorPlugin wandb("wandb", Json::object(), Json::parse(kRunInfo));
    wandb.text({{"Train/Samples/generated_1", "To be", " or\nnot", 0, 0}});
    wandb.write({{"loss", 0.5, 32}});
    wandb.text({{"Train/Samples/generated_1", "To be", " \"ü\"", 4, 32}});
    wandb.text({{"Train/Samples/generated_2", "", "x", 4, 32}});
    wandb.close();
  }

  const Json run = run_reader("read_wandb.py", folder_.path());
  EXPECT_EQ(run.at("tables"), Json::parse(R"([{"_step": "0", "columns": ["step", "samples", "tag", "prompt", "text"],
                             "data": [[0, 0, "Train/Samples/generated_1", "To be", " or\nnot"]]},
                            {"_step": "32", "columns": ["step", "samples", "tag", "prompt", "text"],
                             "data": [[4, 32, "Train/Samples/generated_1", "To be", " \"ü\""],
                                      [4, 32, "Train/Samples/generated_2", "", "x"]]}])"));
}

TEST_F(RealTrackerTest, CometKeepsTextsOffline) {
  {
    MonitorPlugin comet("comet", Json::parse(R"({"samples_log_interval": 100})"), Json::parse(kRunInfo));
    comet.text(
        {{"Train/Samples/generated_1", "To be", " or\nnot", 0, 0}, {"Train/Samples/generated_1", "To be", "!", 4, 32}});
    comet.close();
  }

  const Json texts = run_reader("read_comet.py", folder_.path()).at("texts");
  EXPECT_EQ(texts, Json::parse(R"([{"text": "To be or\nnot", "step": 0, "prompt": "To be",
                                    "tag": "Train/Samples/generated_1"},
                                   {"text": "To be!", "step": 32, "prompt": "To be",
                                    "tag": "Train/Samples/generated_1"}])"));
}

TEST_F(RealTrackerTest, CometKeepsMetricsParametersAndNamesOffline) {
  {
    const Json params = Json::parse(R"({"project": "drum", "workspace": "crew", "experiment_name": "first haul",
                                        "samples_log_interval": 16})");
    MonitorPlugin comet("comet", params, Json::parse(kRunInfo));
    // The first of each tag, then those at least 16 samples after the last that was sent.
    comet.write({{"lr", 1.0, 8}, {"loss", 9.0, 8}, {"lr", 2.0, 16}, {"lr", 3.0, 24}, {"lr", 4.0, 32}});
    comet.write({{"lr", 5.0, 56}, {"loss", 8.0, 24}});
    comet.flush();
    comet.close();
  }

  const Json experiment = run_reader("read_comet.py", folder_.path());
  std::string metrics;
  for (const Json& row : experiment.at("metric").as_array()) {
    const std::string name = row.as_array()[2].as_string();
    if (name == "lr" || name == "loss") metrics += name + "=" + row.as_array()[3].as_string() + " ";
  }
  EXPECT_EQ(metrics, "lr=1.0 loss=9.0 lr=3.0 lr=5.0 loss=8.0 ");
  const std::string data = text_of(experiment.at("data")), params = text_of(experiment.at("param"));
  EXPECT_THAT(data, HasSubstr(R"(["crew","drum","value","first haul"])"));
  EXPECT_THAT(params, HasSubstr(R"("optimizer.params.lr","0.5"])"));
  EXPECT_THAT(params, HasSubstr(R"("optimizer.type","AdamW"])"));
}

TEST_F(TrackerTest, SayHowToGetAMissingPackage) {
  use_python(kPlainPython);

  EXPECT_THAT(
      [] { MonitorPlugin("wandb", Json::object(), Json::object()); },
      ThrowsMessage<PluginError>(HasSubstr("the Python package 'wandb' is not installed for " + kPlainPython +
                                           ". Install it with: " + kPlainPython + " -m pip install 'wandb>=0.16.0'")));
  EXPECT_THAT([] { MonitorPlugin("comet", Json::parse("{\"samples_log_interval\": 100}"), Json::object()); },
              ThrowsMessage<PluginError>(HasSubstr(" -m pip install 'comet_ml>=3.41.0'")));
}

/// A folder that somebody else filled: its json.py and email/ leave a mark when they are imported.
class BadFolderTest : public TrackerTest {
 protected:
  BadFolderTest() {
    use_python(kPlainPython);
    std::filesystem::create_directory(folder_ / "email");
    for (const char* name : {"json.py", "email/__init__.py"})
      write_bytes(folder_ / name, "open('mark', 'w').close()\n");
  }

  void expect_no_mark() const {
    EXPECT_THAT([] { MonitorPlugin("wandb", Json::object(), Json::object()); },
                ThrowsMessage<PluginError>(HasSubstr("the Python package 'wandb' is not installed")));
    EXPECT_FALSE(std::filesystem::exists(folder_ / "mark"));
  }
};

TEST_F(BadFolderTest, NothingIsImportedFromTheWorkingDirectory) { expect_no_mark(); }

TEST_F(BadFolderTest, NothingIsImportedFromItByAPythonThatKnowsNoSafePath) {
  const std::filesystem::path old_python = folder_ / "old_python";
  write_bytes(old_python, "#!/bin/sh\nunset PYTHONSAFEPATH\nexec " + kPlainPython + " \"$@\"\n");
  std::filesystem::permissions(old_python, std::filesystem::perms::owner_all);
  use_python(old_python);
  expect_no_mark();
}

TEST_F(BadFolderTest, NothingIsImportedFromItForAnEmptyOrRelativeEntryOfPythonpath) {
  for (const char* path : {":/nowhere", "/nowhere:", ".", "/nowhere::./"}) {
    ::setenv("PYTHONPATH", path, 1);
    expect_no_mark();
  }
}

TEST_F(TrackerTest, SayWhenAPackageIsTooOld) {
  fake_package("comet_ml", "3.40.9", "");

  EXPECT_THAT([] { MonitorPlugin("comet", Json::parse("{\"samples_log_interval\": 100}"), Json::object()); },
              ThrowsMessage<PluginError>(HasSubstr(
                  "the Python package 'comet_ml' is 3.40.9, and 3.41.0 is the oldest that works. Install it")));
}

TEST_F(TrackerTest, SayWhenThereIsNoPython) {
  use_python("/nowhere/python");

  EXPECT_THAT([] { MonitorPlugin("wandb", Json::object(), Json::object()); },
              ThrowsMessage<PluginError>(HasSubstr(
                  "cannot start '/nowhere/python': No such file or directory. Install Python 3, or name one in "
                  "the environment variable CAPSTAN_PYTHON.")));
}

TEST_F(TrackerTest, SayWhatTheirPackageRefuses) {
  fake_package("wandb", "1.0.0",
               "class Settings:\n  base_url = 'http://127.0.0.1:1'\n  def __init__(self, **_): pass\n"
               "def init(**_):\n  raise ValueError('team \"x\" is\\nunknown')\n");

  EXPECT_THAT([] { MonitorPlugin("wandb", Json::object(), Json::object()); },
              ThrowsMessage<PluginError>(StrEq("open: ValueError: team \"x\" is unknown")));
}

TEST_F(TrackerTest, WandbSaysWhereOfflineRunsAreKeptBeforeItsPackageStarts) {
  fake_package("wandb", "1.0.0", "import os\nos._exit(3)\n");
  using Run = std::pair<const char*, std::filesystem::path>;
  for (const auto& [variable, folder] : {Run("", folder_.path()), Run("/var/runs", "/var/runs")}) {
    ::setenv("WANDB_DIR", variable, 1);
    ::testing::internal::CaptureStderr();
    EXPECT_THROW(MonitorPlugin("wandb", Json::object(), Json::object()), PluginError);
    EXPECT_THAT(::testing::internal::GetCapturedStderr(),
                HasSubstr("wandb: starting; what is kept offline goes to '" + (folder / "wandb").string() + "'."));
  }
  ::unsetenv("WANDB_DIR");
}

TEST_F(TrackerTest, SayWhenTheHelperDies) {
  fake_package("wandb", "1.0.0", "import os\nos._exit(3)\n");

  EXPECT_THAT([] { MonitorPlugin("wandb", Json::object(), Json::object()); },
              ThrowsMessage<PluginError>(
                  StrEq("open: the helper process of wandb (" + kPlainPython + ") ended with exit code 3.")));
}

TEST_F(TrackerTest, AMissingPackageStopsTheRunUnlessTheConfigurationSaysOtherwise) {
  use_python(kPlainPython + "3");
  const std::string config = R"({"train_batch_size": 8, "steps_per_print": null, "wandb": {"enabled": true},
    "optimizer": {"type": "SGD", "params": {"lr": 0.1}}, "capstan": {"run": {"on_monitor_failure": ")";

  EXPECT_THAT([&] { testing_support::SmallRun(config + "stop\"}}}"); },
              ThrowsMessage<PluginError>(::testing::AllOf(
                  HasSubstr("the Python package 'wandb' is not installed"),
                  HasSubstr("To train without it, set capstan.run.on_monitor_failure to \"continue\"."))));

  ::testing::internal::CaptureStderr();
  testing_support::SmallRun run(config + "continue\"}}}");
  run.steps(2);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("Training goes on without it."));
  EXPECT_EQ(run.engine.progress().global_steps, 2);
}

}  // namespace
}  // namespace capstan::test
