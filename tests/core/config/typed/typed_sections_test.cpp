#include "core/config/typed/typed_sections.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "core/config/language/language.hpp"

namespace capstan::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr const char* kManifest = R"(
schema = 1
name = "sections"
version = "1.0.0"
abi.capstan = "1.0"
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

/// Keys that a plugin's parameters, the batch or the run hold, or that have no effect whatever they say.
bool held_elsewhere(const SchemaNode& node) {
  constexpr std::array<std::string_view, 7> kElsewhere = {
      "optimizer",                       // ComponentChoice
      "scheduler",                       // ComponentChoice
      "capstan",                         // RunConfig, components, corrections
      "train_batch_size",                // BatchConfig
      "train_micro_batch_size_per_gpu",  // BatchConfig
      "gradient_accumulation_steps",     // BatchConfig
      "zero_optimization.legacy_stage1"  // true is an error
  };
  for (const std::string_view name : kElsewhere) {
    if (node.path == name || node.path.starts_with(std::string(name) + ".")) return true;
  }
  // Keys that nothing acts on; related_modules is idle for some methods of compression only.
  const bool unread = node.key && *node.key->reader == '\0' && !node.is_section();
  return (node.has(kNoEffect) || unread) && !node.path.ends_with("related_modules");
}

void missing_from(const SchemaNode& node, const std::set<std::string>& read_paths, std::vector<std::string>& missing) {
  if (held_elsewhere(node)) return;
  if (!node.path.empty() && !node.path.ends_with("[]") && !read_paths.contains(node.path)) missing.push_back(node.path);
  for (const auto& member : node.members) missing_from(*member, read_paths, missing);
  if (node.any_member) missing_from(*node.any_member, read_paths, missing);
  if (node.element) missing_from(*node.element, read_paths, missing);
}

TEST(TypedSections, HoldEveryKeyOfTheLanguage) {
  // Members under names of the user's choice are asked for only where there are any.
  const Json document = Json::parse(R"({
    "compression_training": {"weight_quantization": {"different_groups": {"g": {}}},
      "activation_quantization": {"different_groups": {"g": {}}}, "sparse_pruning": {"different_groups": {"g": {}}},
      "row_pruning": {"different_groups": {"g": {}}}, "head_pruning": {"different_groups": {"g": {}}},
      "channel_pruning": {"different_groups": {"g": {}}}},
    "data_efficiency": {"data_sampling": {"curriculum_learning": {"curriculum_metrics": {"m": {}}}}},
    "tensor_parallel": {"partition_config": {"layer_specs": [{}]}}})");
  std::set<std::string> read_paths;
  Config config;
  read_typed_sections(SectionValues(&document, "", &read_paths), config);

  std::vector<std::string> missing;
  missing_from(language(), read_paths, missing);
  EXPECT_THAT(missing, IsEmpty());
}

TEST(TypedSections, HaveTheDefaultsOfTheLanguage) {
  const Config config = read(R"({"train_batch_size": 8})");

  ZeroConfig zero;
  zero.leaf_classes = config.zero.leaf_classes;  // three names that only the table lists
  EXPECT_EQ(config.zero.leaf_classes.size(), 3u);
  EXPECT_EQ(config.zero, zero);
  TorchAutocastConfig autocast;
  autocast.lower_precision_safe_modules = {"torch.nn.Linear", "torch.nn.Conv1d", "torch.nn.Conv2d", "torch.nn.Conv3d"};
  EXPECT_EQ(config.torch_autocast, autocast);
  EXPECT_EQ(config.aio, AioConfig());
  EXPECT_EQ(config.fp16, Fp16Config());
  EXPECT_EQ(config.bf16, Bf16Config());
  EXPECT_EQ(config.amp, AmpConfig());
  EXPECT_EQ(config.data_types, DataTypesConfig());
  EXPECT_EQ(config.communication, CommunicationConfig());
  EXPECT_EQ(config.comms_logger, CommsLoggerConfig());
  EXPECT_EQ(config.flops_profiler, FlopsProfilerConfig());
  EXPECT_EQ(config.autotuning, AutotuningConfig());
  EXPECT_EQ(config.tensorboard, TensorboardConfig());
  EXPECT_EQ(config.wandb, WandbConfig());
  EXPECT_EQ(config.csv_monitor, CsvMonitorConfig());
  EXPECT_EQ(config.comet, CometConfig());
  EXPECT_EQ(config.activation_checkpointing, ActivationCheckpointingConfig());
  EXPECT_FALSE(config.sparse_attention);
  EXPECT_EQ(config.compression.weight_quantization, WeightQuantizationConfig());
  EXPECT_EQ(config.compression.activation_quantization, ActivationQuantizationConfig());
  EXPECT_EQ(config.compression.sparse_pruning, SparsePruningConfig());
  EXPECT_EQ(config.compression.row_pruning, PruningConfig());
  EXPECT_EQ(config.compression.channel_pruning, PruningConfig());
  EXPECT_EQ(config.eigenvalue, EigenvalueConfig());
  EXPECT_EQ(config.progressive_layer_drop, ProgressiveLayerDropConfig());
  EXPECT_EQ(config.data_efficiency, DataEfficiencyConfig());
  EXPECT_EQ(config.curriculum_learning, LegacyCurriculumConfig());
  EXPECT_EQ(config.elasticity, ElasticityConfig());
  EXPECT_EQ(config.checkpoint, CheckpointConfig());
  EXPECT_EQ(config.nebula, NebulaConfig());
  EXPECT_EQ(config.parallelism, ParallelismConfig());
}

TEST(TypedSections, HoldWhatTheFileSaysOfZero) {
  const Config config = read(R"({"train_batch_size": 8, "optimizer": null, "zero_optimization": {
    "stage": 3, "sub_group_size": 0, "allgather_bucket_size": 11, "reduce_bucket_size": 12, "round_robin_gradients": true,
    "stage3_max_live_parameters": 13, "stage3_param_persistence_threshold": 14, "leaf_module": {"names": ["moe"]},
    "zero_hpz_partition_size": 8, "zeropp_loco_param": {"err_beta": 0.5},
    "offload_param": {"device": "cpu", "max_in_cpu": 15}},
    "aio": {"queue_depth": 32, "single_submit": true}})");

  EXPECT_EQ(config.zero.stage, 3);
  EXPECT_EQ(config.zero.sub_group_size, 1);  // one parameter a tile
  EXPECT_EQ(config.zero.allgather_bucket_size, 11);
  EXPECT_EQ(config.zero.reduce_bucket_size, 12);
  EXPECT_TRUE(config.zero.round_robin_gradients);
  EXPECT_TRUE(config.zero.overlap_comm);  // follows from the stage
  EXPECT_EQ(config.zero.stage3_max_live_parameters, 13);
  EXPECT_EQ(config.zero.stage3_param_persistence_threshold, 14);
  EXPECT_THAT(config.zero.leaf_names, ElementsAre("moe"));
  EXPECT_EQ(config.zero.zero_hpz_partition_size, 8);
  EXPECT_EQ(config.zero.zeropp_loco_param.value(), (LocoConfig{0.5, 1024}));
  EXPECT_EQ(config.zero.offload_param.value().device, "cpu");
  EXPECT_EQ(config.zero.offload_param->max_in_cpu, 15);
  EXPECT_FALSE(config.zero.offload_optimizer);
  EXPECT_FALSE(config.zero.zenflow);
  EXPECT_EQ(config.aio.queue_depth, 32);
  EXPECT_TRUE(config.aio.single_submit);
}

TEST(TypedSections, TakeTheWordAutoForAnAbsentNumber) {
  const Json section = Json::parse(R"({"zenflow": {"select_interval": "auto", "update_interval": 4}})");

  const ZeroConfig zero = read_zero(SectionValues(&section, "zero_optimization"));
  EXPECT_EQ(zero.zenflow.value().select_interval, std::nullopt);
  EXPECT_EQ(zero.zenflow->update_interval, 4);
}

TEST(TypedSections, HoldGroupsUnderTheirNames) {
  const Config config = read(R"({"train_batch_size": 8, "compression_training": {
    "weight_quantization": {"different_groups": {"wq1": {"params": {"start_bits": 12, "target_bits": 4}, "modules": "attention"}}},
    "row_pruning": {"different_groups": {"rp1": {"params": {"dense_ratio": 0.5}, "modules": ["fc1"], "related_modules": [["fc2", "fc3"]]}}}},
    "autotuning": {"arg_mappings": {"train_micro_batch_size_per_gpu": "--batch"}, "model_info": {"num_params": 7}}})");

  const auto& wq1 = config.compression.weight_quantization.groups.at("wq1");
  EXPECT_EQ(wq1.start_bits, 12);
  EXPECT_EQ(wq1.target_bits, 4);
  EXPECT_EQ(wq1.quantization_period, 1);
  EXPECT_THAT(wq1.modules.value(), ElementsAre("attention"));
  const auto& rp1 = config.compression.row_pruning.groups.at("rp1");
  EXPECT_EQ(rp1.dense_ratio, 0.5);
  EXPECT_THAT(rp1.related_modules, ElementsAre(ElementsAre("fc2", "fc3")));
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
      "schema = 1\nname = \"disk\"\nversion = \"1.0.0\"\nabi.capstan = \"1.0\"\nabi.torch.tier = \"none\"\n"
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
  EXPECT_FALSE(config.aio.queue_depth);
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
      "schema = 1\nname = \"both\"\nversion = \"1.0.0\"\nabi.capstan = \"1.0\"\nabi.torch.tier = \"none\"\n"
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
