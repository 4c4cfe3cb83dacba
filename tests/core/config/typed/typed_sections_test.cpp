#include "core/config/typed/typed_sections.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/config/config.hpp"

namespace capstan::testing {
namespace {

constexpr const char* kManifest = R"(
schema = 1
name = "sections"
version = "1.0.0"
abi.plugin = "1.0"
abi.torch.tier = "none"
components = [{kind = "observer", type = "nebula", section = "nebula"}]
)";

/// Read for eight ranks.
Config read(const std::string& text) {
  ConfigContext context;
  context.world_size = 8;
  context.check_only = true;  // lists to search are read
  const PluginIndex plugins = PluginIndex::of({{"sections.toml", PluginManifest::parse(kManifest, "sections.toml")}});
  ConfigReading reading = read_config({text, "test.json", false}, context, plugins);
  for (const Problem& problem : reading.problems.all()) {
    if (problem.severity == Problem::Severity::kError) ADD_FAILURE() << problem.text("test.json");
  }
  return reading.config.value_or(Config());
}

TEST(TypedSections, HaveTheDefaultsOfTheLanguage) {
  const Config config = read(R"({"train_batch_size": 8})");

  EXPECT_EQ(config.zero, ZeroConfig());
  TorchAutocastConfig autocast;
  autocast.lower_precision_safe_modules = {"torch.nn.Linear", "torch.nn.Conv1d", "torch.nn.Conv2d", "torch.nn.Conv3d"};
  EXPECT_EQ(config.torch_autocast, autocast);
  EXPECT_EQ(config.communication, CommunicationConfig());
  EXPECT_EQ(config.comms_logger, CommsLoggerConfig());
  EXPECT_EQ(config.autotuning, AutotuningConfig());
  EXPECT_EQ(config.compression, CompressionConfig());
  EXPECT_EQ(config.data_efficiency, DataEfficiencyConfig());
  EXPECT_EQ(config.elasticity, ElasticityConfig());
  EXPECT_EQ(config.checkpoint, CheckpointConfig());
}

TEST(TypedSections, HoldWhatTheFileSaysOfZero) {
  const Config config = read(R"({"train_batch_size": 8, "optimizer": null, "zero_optimization": {
    "stage": 3, "sub_group_size": 0, "allgather_bucket_size": 11, "reduce_bucket_size": 12,
    "stage3_max_live_parameters": 13, "stage3_param_persistence_threshold": 14,
    "zero_hpz_partition_size": 8, "zeropp_loco_param": {"err_beta": 0.5},
    "offload_param": {"device": "cpu", "max_in_cpu": 15}}})");

  EXPECT_EQ(config.zero.stage, 3);
  EXPECT_EQ(config.zero.sub_group_size, 1);  // one parameter a tile
  EXPECT_EQ(config.zero.allgather_bucket_size, 11);
  EXPECT_EQ(config.zero.reduce_bucket_size, 12);
  EXPECT_TRUE(config.zero.overlap_comm);  // follows from the stage
  EXPECT_EQ(config.zero.stage3_max_live_parameters, 13);
  EXPECT_EQ(config.zero.stage3_param_persistence_threshold, 14);
  EXPECT_EQ(config.zero.zero_hpz_partition_size, 8);
  EXPECT_EQ(config.zero.zeropp_loco_param.value(), (LocoConfig{0.5, 1024}));
  EXPECT_EQ(config.zero.offload_param.value().device, "cpu");
  EXPECT_EQ(config.zero.offload_param->max_in_cpu, 15);
  EXPECT_FALSE(config.zero.offload_optimizer);
}

TEST(TypedSections, HoldTextsUnderTheirNames) {
  const Config config = read(R"({"train_batch_size": 8, "autotuning": {
    "arg_mappings": {"train_micro_batch_size_per_gpu": "--batch"}, "model_info": {"num_params": 7}}})");

  EXPECT_EQ(config.autotuning.arg_mappings.at("train_micro_batch_size_per_gpu"), "--batch");
  EXPECT_EQ(config.autotuning.model_info.value().num_params, 7);
}

TEST(TypedSections, KeepDefaultsWhereOnlyAutotuningTakesTheValue) {
  const Config config = read(R"({"train_batch_size": 8, "autotuning": {"enabled": true},
    "zero_optimization": {"stage": "all", "reduce_bucket_size": [1, 2]}})");

  EXPECT_EQ(config.zero.stage, 0);
  EXPECT_EQ(config.zero.reduce_bucket_size, 500'000'000);
}

Config with_stores(const std::string& sections, int world) {
  constexpr const char* kManifest =
      "schema = 1\nname = \"disk\"\nversion = \"1.0.0\"\nabi.plugin = \"1.0\"\nabi.torch.tier = \"none\"\n"
      "[[components]]\nkind = \"offload\"\ntype = \"nvme\"\n"
      "params.nvme_path = {type = \"path\", default = \"/local_nvme\"}\n"
      "params.queue_depth = {type = \"integer\", default = 0}\n"
      "params.block_size = {type = \"integer\", default = 1048576}\n";
  ConfigContext context;
  context.check_only = true;
  context.world_size = world;
  const ConfigReading reading =
      read_config({R"({"train_batch_size": 8, )" + sections + "}", "stores.json", false}, context,
                  PluginIndex::of({{"disk.so", PluginManifest::parse(kManifest, "disk")}}));
  EXPECT_TRUE(reading.config) << (reading.problems.all().empty() ? "" : reading.problems.all()[0].message);
  return reading.config.value_or(Config());
}

TEST(Offload, HandsTheKeysOfItsSectionAndOfAioToTheStore) {
  const Config config = with_stores(R"("aio": {"queue_depth": 32, "block_size": 4096, "thread_count": 2},
    "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "NVMe", "nvme_path": "/tmp", "pin_memory": false},
                          "offload_param": {"device": "nvme", "nvme_path": "/tmp/two"}})",
                                    2);
  ASSERT_TRUE(config.optimizer_offload && config.parameter_offload);
  EXPECT_EQ(config.optimizer_offload->params.dump(), Json::parse(R"({"nvme_path": "/tmp", "queue_depth": 32,
    "block_size": 4096})")
                                                         .dump());
  EXPECT_EQ(config.parameter_offload->params.at("nvme_path"), Json("/tmp/two"));
  EXPECT_EQ(config.parameter_offload->params.at("queue_depth"), Json(32));
}

TEST(Offload, LeavesTheDepthToTheStoreWhereNoneIsGiven) {
  const Config config = with_stores(R"("zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme"}})", 1);
  EXPECT_EQ(config.optimizer_offload.value().params.at("queue_depth"), Json(0));
  EXPECT_FALSE(config.zero.offload_optimizer->pipeline_read);
  EXPECT_EQ(config.zero.stage, 0);  // one process holds everything
}

TEST(Offload, KeepsStage3InOneProcessWhereParametersAreAway) {
  const char* own = R"("zero_optimization": {"stage": 3}, "capstan": {"offload": {"parameters": {"type": "nvme"}}})";
  EXPECT_EQ(with_stores(own, 1).zero.stage, 3);
  EXPECT_EQ(with_stores(R"("zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}})", 1).zero.stage, 3);
  EXPECT_EQ(with_stores(R"("zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}})", 1).zero.stage, 0);
}

TEST(Offload, IsRefusedForAnOptimizerThatCannotUpdateOnTheHost) {
  constexpr const char* kManifest =
      "schema = 1\nname = \"both\"\nversion = \"1.0.0\"\nabi.plugin = \"1.0\"\nabi.torch.tier = \"none\"\n"
      "[[components]]\nkind = \"offload\"\ntype = \"Tape\"\n"
      "[[components]]\nkind = \"optimizer\"\ntype = \"OnDevice\"\ntraits = [\"elementwise\"]\n";
  const ConfigReading reading =
      read_config({R"({"train_batch_size": 8, "optimizer": {"type": "OnDevice"},
                       "capstan": {"offload": {"optimizer": {"type": "Tape"}}}})",
                   "stores.json", false},
                  {}, PluginIndex::of({{"both.so", PluginManifest::parse(kManifest, "both")}}));
  EXPECT_FALSE(reading.config);
  std::string said;
  for (const Problem& problem : reading.problems.all()) {
    if (problem.severity == Problem::Severity::kError) said += problem.path + ": " + problem.message;
  }
  EXPECT_EQ(said,
            "capstan.offload.optimizer: optimizer 'OnDevice' does not declare the trait 'cpu', so it cannot update on "
            "the host. Remove the section, or choose one that does.");
}

TEST(Offload, ReadsNoFurtherAheadThanItsBuffers) {
  const auto ahead = [](const std::string& keys) {
    return with_stores(R"("zero_optimization": {"stage": 3, "offload_param": {"device": "nvme", )" + keys + "}}", 1)
        .zero.stage3_prefetch_bucket_size;
  };
  EXPECT_EQ(ahead(R"("buffer_count": 5)"), 50'000'000);
  EXPECT_EQ(ahead(R"("buffer_count": 2, "buffer_size": 1000)"), 2000);
  EXPECT_EQ(ahead(R"("buffer_count": 65536, "buffer_size": 9e18)"), 50'000'000);
}

}  // namespace
}  // namespace capstan::testing
