#include "core/monitor/run_info.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace capstan {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Config config_of(const std::string& text) {
  PluginIndex plugins;
  return load_config({text, "test", false}, {}, plugins);
}

TEST(RunInfo, TellsWhereARunGoesOnAndWhatItTrains) {
  const Config config = config_of(R"({"train_batch_size": 8})");
  const Json info = run_info(config, {.resumed_at = 64, .model = "gpt tiny", .parameters = 123, .device = "cpu"});

  EXPECT_EQ(info.at("resumed_at"), Json(64));
  EXPECT_EQ(info.at("world_size"), Json(1));
  EXPECT_EQ(info.at("model"), Json("gpt tiny"));
  EXPECT_EQ(info.at("parameters"), Json(123));
  EXPECT_EQ(info.at("device"), Json("cpu"));
  EXPECT_EQ(info.at("config").at("gradient_clipping"), Json(1.0));
  EXPECT_TRUE(run_info(config, {}).at("resumed_at").is_null());
}

TEST(RunInfo, ListsTheNumbersByWhichRunsAreCompared) {
  const Config config = config_of(R"({"train_batch_size": 8, "gradient_accumulation_steps": 2,
    "optimizer": {"type": "SGD", "params": {"lr": 0.5}}, "bf16": {"enabled": true},
    "csv_monitor": {"enabled": true, "job_name": "x"}})");
  const Json rows = run_info(config, {}).at("hparams");
  std::string text;
  for (const Json& row : rows.as_array()) text += row.dump() + "\n";

  EXPECT_THAT(text, HasSubstr("[\"optimizer.type\",\"SGD\",\"string\"]\n"));
  EXPECT_THAT(text, HasSubstr("[\"optimizer.params.lr\",0.5,\"number\"]\n"));
  EXPECT_THAT(text, HasSubstr("[\"optimizer.params.momentum\","));  // defaults of the component too
  EXPECT_THAT(text, HasSubstr("[\"train_micro_batch_size_per_gpu\",4,\"number\"]\n"));
  EXPECT_THAT(text, HasSubstr("[\"bf16.enabled\",true,\"boolean\"]\n"));
  EXPECT_THAT(text, Not(HasSubstr("job_name")));
}

TEST(RunInfo, BlotsOutCredentialsEverywhere) {
  const Json blotted = without_credentials(Json::parse(
      R"({"comet": {"api_key": "secret", "project": "p"}, "list": [{"api_key": "secret"}], "api_key": null})"));
  EXPECT_EQ(
      blotted,
      Json::parse(R"({"comet": {"api_key": "***", "project": "p"}, "list": [{"api_key": "***"}], "api_key": null})"));
}

}  // namespace
}  // namespace capstan
