#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "core/config/config.hpp"
#include "core/config/resolve/launcher_world.hpp"
#include "core/errors.hpp"

namespace capstan {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class ConfigTextTest : public ::testing::Test {
 protected:
  ConfigTextTest()
      : folder_(std::filesystem::path(::testing::TempDir()) / ("config_text_" + std::to_string(getpid()))) {
    std::filesystem::create_directories(folder_);
  }
  ~ConfigTextTest() override { std::filesystem::remove_all(folder_); }

  std::string file(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name, std::ios::binary) << text;
    return (folder_ / name).string();
  }

  std::filesystem::path folder_;
};

TEST_F(ConfigTextTest, ReadsFilesAndKnowsTomlByItsName) {
  const std::string json = file("a.json", "{}");
  EXPECT_EQ(read_config_text(json).text, "{}");
  EXPECT_EQ(read_config_text(json).source, json);
  EXPECT_FALSE(read_config_text(json).toml);
  EXPECT_TRUE(read_config_text(file("a.toml", "")).toml);
}

TEST_F(ConfigTextTest, ReadsUrlSafeBase64) {
  EXPECT_EQ(read_config_text("eyJhIjogIj8_In0=").text, R"({"a": "??"})");
  EXPECT_EQ(read_config_text("eyJhIjogIj8_In0").text, R"({"a": "??"})");
}

TEST_F(ConfigTextTest, NamesAllFormsWhenNoneFits) {
  EXPECT_THAT(
      [] { read_config_text("no_such_file.json"); },
      ThrowsMessage<ConfigError>("'no_such_file.json' is neither an existing file nor base64 of a configuration. "
                                 "Give the path of a JSON, TOML or YAML file, or the JSON text in URL-safe base64."));
  // Valid base64, but of something else.
  EXPECT_THAT([] { read_config_text("aGVsbG8="); },
              ThrowsMessage<ConfigError>(HasSubstr("is neither an existing file")));
}

TEST_F(ConfigTextTest, RefusesFoldersAndFilesOf100Megabytes) {
  EXPECT_THAT([&] { read_config_text(folder_.string()); },
              ThrowsMessage<ConfigError>(folder_.string() + ": is a folder; a configuration is a file."));
  const std::string large = file("large.json", "");
  std::filesystem::resize_file(large, 100'000'000);
  EXPECT_THAT([&] { read_config_text(large); },
              ThrowsMessage<ConfigError>(large + ": larger than 16 MiB; a configuration has a few kilobytes."));
}

TEST_F(ConfigTextTest, LoadsForProgramsOrThrowsEveryError) {
  PluginIndex plugins;
  ConfigContext context;
  const Config config = load_config({"{\"train_batch_size\": 8}", "c.json", false}, context, plugins);
  EXPECT_EQ(config.batch.micro_batch_size, 8);
  EXPECT_THAT(
      [&] {
        load_config({"{\"train_batch_size\": 0,\n \"dump_stat\": true}", "c.json", false}, context, plugins);
      },
      ThrowsMessage<ConfigError>("c.json:1:2: train_batch_size: must be above 0, got 0.\n"
                                 "c.json:2:2: dump_stat: unknown key. Did you mean 'dump_state'?"));
}

TEST(LauncherWorld, ReadsTheVariablesOfLaunchers) {
  const char* names[] = {"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS", "SLURM_STEP_NUM_TASKS"};
  for (const char* name : names) unsetenv(name);
  setenv("SLURM_NTASKS", "16", 1);  // of the allocation: a batch script is one process
  EXPECT_FALSE(launcher_world().known);
  EXPECT_THAT(launcher_world().origin, HasSubstr("WORLD_SIZE is not set"));
  setenv("SLURM_STEP_NUM_TASKS", "8", 1);
  EXPECT_EQ(launcher_world().size, 8);
  EXPECT_EQ(launcher_world().origin, "SLURM_STEP_NUM_TASKS");
  for (const char* wrong : {"many", "0", "-1", "", "4 "}) {
    setenv("WORLD_SIZE", wrong, 1);
    EXPECT_THAT(launcher_world, ThrowsMessage<RuntimeFault>("WORLD_SIZE is '" + std::string(wrong) +
                                                            "', which is not a count. A launcher sets it; unset it to "
                                                            "train in one process."));
  }
  setenv("WORLD_SIZE", "4", 1);
  EXPECT_EQ(launcher_world().size, 4);
  for (const char* name : names) unsetenv(name);
}

}  // namespace
}  // namespace capstan
