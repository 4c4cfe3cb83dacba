#include "core/config/tools/explain.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/errors.hpp"
#include "tests/core/config/config_cases.hpp"

namespace capstan::testing {
namespace {

using ::testing::ThrowsMessage;

TEST(Explain, SaysMeaningTypeDefaultAgeAndReader) {
  EXPECT_EQ(explain_key("zero_optimization.stage3_prefetch_bucket_size", all_components()),
            "zero_optimization.stage3_prefetch_bucket_size\n"
            "  Elements fetched ahead.\n"
            "  type     integer: at least 0\n"
            "  default  50000000\n"
            "  since    DeepSpeed's documentation of 2022\n"
            "  read by  the engine, at stage 3 with several processes or with parameters offloaded\n");
}

/// The last line of an explanation.
std::string reader(const std::string& key) {
  const std::string text = explain_key(key, all_components());
  return text.substr(text.find("read by"));
}

TEST(Explain, SaysWhatActsOnEachKeyAndNotOnItsNeighbours) {
  EXPECT_EQ(reader("fp16.loss_scale"), "read by  the engine\n");
  EXPECT_EQ(reader("fp16.auto_cast"), "read by  nothing in this installation; its value is checked\n");
  EXPECT_EQ(reader("elasticity.min_time"), "read by  capstan launch --elastic\n");
  for (const std::string key : {"zero_hpz_partition_size", "zero_quantized_weights", "zeropp_loco_param.err_beta"}) {
    EXPECT_EQ(reader("zero_optimization." + key), "read by  the engine, at stage 3 with several processes\n");
  }
  EXPECT_EQ(reader("communication_data_type"), "read by  the engine, with several processes\n");
  EXPECT_EQ(reader("zero_optimization.mics_shard_size"),
            "read by  nothing: parameters are partitioned over all ranks\n");
  EXPECT_EQ(reader("zero_optimization.offload_param.buffer_count"), "read by  the engine\n");
  EXPECT_EQ(reader("aio.queue_depth"), "read by  the offload 'nvme' (test-sections 1.0.0)\n");
  // The manifest of that plugin does not list it.
  EXPECT_EQ(reader("aio.use_gds"), "read by  nothing in this installation; its value is checked\n");
  EXPECT_EQ(reader("wandb.enabled"), "read by  the monitor 'WandB' (test-monitors 1.0.0)\n");
  // This plugin's manifest lists no such parameter, so it would not get it.
  EXPECT_EQ(reader("comet.api_key"), "read by  nothing in this installation; its value is checked\n");
  EXPECT_THAT(reader("fp16"), ::testing::StartsWith("read by  what acts on its keys\n  keys     enabled, "));
}

TEST(Explain, NamesThePluginThatOwnsASection) {
  EXPECT_EQ(explain_key("csv_monitor.job_name", all_components()),
            "csv_monitor.job_name\n"
            "  Folder below it.\n"
            "  type     string\n"
            "  default  \"DeepSpeedJobName\"\n"
            "  since    DeepSpeed's documentation of 2024\n"
            "  read by  the monitor 'CSV' (test-monitors 1.0.0)\n");
}

TEST(Explain, ExplainsASectionThatOnlyItsPluginKnows) {
  EXPECT_EQ(explain_key("acme_probe", all_components()),
            "acme_probe\n"
            "  Holds the keys below it.\n"
            "  type     object\n"
            "  read by  observer 'acme_probe' (test-sections 1.0.0)\n"
            "  keys     enabled, every, label\n");
  EXPECT_EQ(explain_key("acme_probe.every", all_components()),
            "acme_probe.every\n"
            "  Its plugin says no more of it.\n"
            "  type     integer: at least 1\n"
            "  default  10\n"
            "  read by  observer 'acme_probe' (test-sections 1.0.0)\n");
  EXPECT_EQ(explain_key("acme_probe.enabled", all_components()),
            "acme_probe.enabled\n"
            "  Switches the section on.\n"
            "  type     boolean\n"
            "  default  false\n"
            "  read by  observer 'acme_probe' (test-sections 1.0.0)\n");
  EXPECT_THAT([] { explain_key("acme_probe.evry", all_components()); },
              ThrowsMessage<ConfigError>("'acme_probe.evry': there is no such key. Did you mean 'acme_probe.every'?"));
}

TEST(Explain, ExplainsParametersOfPlugins) {
  EXPECT_EQ(explain_key("optimizer.params.freeze_step", all_components()),
            "optimizer.params.freeze_step\n"
            "  OneBitAdam: integer: at least 1; default 100000\n"
            "  OneBitLamb: integer: at least 1; default 100000\n");
}

TEST(Explain, NamesTheNearestKey) {
  EXPECT_THAT([] { explain_key("overlap_comm", all_components()); },
              ThrowsMessage<ConfigError>(
                  "'overlap_comm': there is no such key. Did you mean 'zero_optimization.overlap_comm'?"));
  for (const std::string name : {"lr", "learning-rate"}) {
    EXPECT_THAT(
        [&] { explain_key(name, all_components()); },
        ThrowsMessage<ConfigError>("'" + name + "': there is no such key. Did you mean 'optimizer.params.lr'?"));
  }
  EXPECT_THAT([] { explain_key("fp16.enabld", all_components()); },
              ThrowsMessage<ConfigError>("'fp16.enabld': there is no such key. Did you mean 'fp16.enabled'?"));
}

TEST(ReferencePage, IsTheOneInTheDocumentation) {
  const std::string page =
      read_text(std::filesystem::path(CAPSTAN_TEST_SOURCE_DIR) / "docs/reference/configuration.md");
  EXPECT_TRUE(page == reference_page()) << "docs/reference/configuration.md differs from the tables: "
                                           "run capstan schema --reference > docs/reference/configuration.md";
}

}  // namespace
}  // namespace capstan::testing
