#include "core/config/tools/upgrade.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/errors.hpp"
#include "core/text/relaxed.hpp"

namespace capstan {
namespace {

using ::testing::ElementsAre;
using ::testing::ThrowsMessage;

std::string upgraded(const std::string& text) { return upgrade_text({text, "c.json", false}).text; }

TEST(Upgrade, LeavesTodaysTextAsItIs) {
  const std::string text = "{\n  // a note\n  \"train_batch_size\": 8 # here\n}\n";
  EXPECT_EQ(upgraded(text), text);
}

TEST(Upgrade, KeepsCommentsAndLayout) {
  EXPECT_EQ(upgraded("{\n"
                     "  // sizes\n"
                     "  \"train_step_batch_size\": 8, /* a device */\n"
                     "  \"zero_optimization\": {\n"
                     "    \"stage\": 2, # partition\n"
                     "    \"cpu_offload\": true\n"
                     "  },\n"
                     "  \"bfloat16\": {\"enabled\": true} // short\n"
                     "}\n"),
            "{\n"
            "  // sizes\n"
            "  \"train_micro_batch_size_per_gpu\": 8, /* a device */\n"
            "  \"zero_optimization\": {\n"
            "    \"stage\": 2, # partition\n"
            "    \"offload_optimizer\": {\"device\":\"cpu\"}\n"
            "  },\n"
            "  \"bf16\": {\"enabled\": true} // short\n"
            "}\n");
}

TEST(Upgrade, RemovesKeysWithoutEffectAndTheirLines) {
  EXPECT_EQ(upgraded("{\n  \"fp16\": {\n    \"enabled\": true,\n    \"opt_level\": \"O2\"\n  },\n"
                     "  \"cuda_visible_devices\": \"0\",\n  \"steps_per_print\": 5\n}\n"),
            "{\n  \"fp16\": {\n    \"enabled\": true\n  },\n  \"steps_per_print\": 5\n}\n");
}

TEST(Upgrade, MovesKeysBetweenSections) {
  EXPECT_EQ(upgraded("{\n  \"disable_allgather\": true,\n  \"zero_optimization\": {\n    \"stage\": 1\n  }\n}\n"),
            "{\n  \"zero_optimization\": {\n    \"allgather_partitions\": false,\n    \"stage\": 1\n  }\n}\n");
  EXPECT_EQ(upgraded("{\n  \"eigenvalue\": {\"max_iter\": 5, \"tol\": 0.1},\n  \"train_batch_size\": 8\n}\n"),
            "{\n  \"quantize_training\": { \"eigenvalue\": {\"max_iter\": 5, \"tol\": 0.1}},\n  "
            "\"train_batch_size\": 8\n}\n");
}

TEST(Upgrade, WritesTheBooleanFormOfZeroOut) {
  EXPECT_EQ(upgraded("{\"allgather_size\": 1000, \"zero_optimization\": true}"),
            "{ \"zero_optimization\": {\"stage\":1,\"allgather_bucket_size\":1000}}");
}

TEST(Upgrade, WritesCommasQuotesAndWordsAsJsonHasThem) {
  const Upgraded out = upgrade_text(
      {"{\n  'train_batch_size': 8, // a \"note\"\n  \"fp16\": {\"enabled\": True,},\n  \"seed_layers\": None /* c */\n"
       "  \"dump_state\": False\n  \"zero_optimization\": {\n    'stage': 1,\n    \"cpu_offload\": true,\n  }, # "
       "end\n}",
       "c.json", false});
  EXPECT_EQ(out.text,
            "{\n  \"train_batch_size\": 8, // a \"note\"\n  \"fp16\": {\"enabled\": true},\n  \"seed_layers\": null, "
            "/* c */\n"
            "  \"dump_state\": false,\n  \"zero_optimization\": {\n    \"stage\": 1,\n    \"offload_optimizer\": "
            "{\"device\":\"cpu\"}\n  } # end\n}");
  EXPECT_THAT(out.changes, ElementsAre("zero_optimization.cpu_offload -> zero_optimization.offload_optimizer",
                                       "2 missing commas added", "3 commas before a closing bracket removed",
                                       "5 values spelt as in JSON: quotes, null, true, false"));
  // Without its comments the text is strict JSON.
  Problems problems;
  const auto strict = make_strict(out.text, problems);
  ASSERT_TRUE(strict);
  EXPECT_EQ(strict->fixes.size(), 0u);
  EXPECT_EQ(problems.all().size(), 1u);
}

TEST(Upgrade, EscapesQuotesOfStringsInSingleQuotes) {
  EXPECT_EQ(upgraded(R"({'wandb': {'project': 'a "b" it\'s \u00e4'}})"),
            R"({"wandb": {"project": "a \"b\" it's \u00e4"}})");
}

TEST(Upgrade, SaysWhatItChanged) {
  const Upgraded out = upgrade_text({"{\"fp32_allreduce\": true, \"train_step_batch_size\": 4}", "c.json", false});
  EXPECT_THAT(out.changes, ::testing::UnorderedElementsAre("fp32_allreduce -> communication_data_type",
                                                           "train_step_batch_size -> train_micro_batch_size_per_gpu"));
  EXPECT_EQ(out.text, "{\"communication_data_type\": \"fp32\", \"train_micro_batch_size_per_gpu\": 4}");
}

TEST(Upgrade, RefusesContradictions) {
  EXPECT_THAT([] { upgraded("{\"train_step_batch_size\": 4, \"train_micro_batch_size_per_gpu\": 4}"); },
              ThrowsMessage<ConfigError>("c.json: train_step_batch_size: is the old spelling of "
                                         "train_micro_batch_size_per_gpu, which is given too. Keep only the new one."));
  EXPECT_THAT(
      [] {
        upgrade_text({"", "c.toml", true});
      },
      ThrowsMessage<ConfigError>("c.toml: upgrade reads JSON; TOML files never had old spellings."));
  EXPECT_THAT([] { upgraded("train_step_batch_size: 4\n"); },
              ThrowsMessage<ConfigError>("c.json: upgrade reads JSON, and this is YAML."));
}

}  // namespace
}  // namespace capstan
