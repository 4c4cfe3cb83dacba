#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "core/text/json.hpp"
#include "tests/cli/programs.hpp"

namespace capstan::cli {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

class Plan : public testing::Test {
 protected:
  void SetUp() override {
    std::ofstream(folder_ / "ds.json") << R"({"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true},
      "gradient_clipping": 1.0, "optimizer": {"type": "AdamW", "params": {"lr": 0.001}},
      "zero_optimization": {"stage": 2}})";
  }
  ProcessResult plan(std::vector<std::string> words) {
    words.insert(words.begin(), {"plan", "--config", "ds.json"});
    return run_capstan(folder_, words);
  }
  TemporaryFolder folder_;
};

TEST_F(Plan, CountsTheParametersOfAModelThatFitsNoMachine) {
  const ProcessResult result = plan({"--model", "gpt:7b", "--world", "64", "--local-world", "8", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json json = Json::parse(result.out);
  // 32 blocks of 12 d^2 + 13 d, two embeddings and the head over 256 bytes and 2048 places, the last norm.
  const std::int64_t d = 4096;
  EXPECT_EQ(json.at("parameters"), Json(32 * (12 * d * d + 13 * d) + (256 + 2048 + 256) * d + 2 * d));
  EXPECT_EQ(json.at("local_world"), Json(8));
  EXPECT_EQ(json.at("choices").size(), 14u);
  EXPECT_LT(json.at("program").as_integer(), 1'000'000'000);  // it was not built
}

TEST_F(Plan, SaysWhatItSaysToAPerson) {
  const ProcessResult result = plan({"--model", "gpt:tiny", "--world", "4", "--local-world", "2"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("bf16, gradients added up in bfloat16, AdamW, zero_optimization.stage 2, 4 "
                                    "processes, 2 of them on a host"));
  EXPECT_THAT(result.out, HasSubstr("> 2      none               none "));
  EXPECT_THAT(result.out, HasSubstr("together, stage 2"));
  EXPECT_THAT(result.out, HasSubstr(">: as configured. The model computes on the CPU: memory and host are one.\n"));
  EXPECT_THAT(result.out, HasSubstr("host memory, available"));
}

TEST_F(Plan, TakesOneSampleWhereTheBatchIsLeftOpen) {
  std::ofstream(folder_ / "ds.json") << R"({"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto",
    "gradient_clipping": 1.0, "optimizer": {"type": "AdamW", "params": {"lr": 0.001}}})";
  const ProcessResult open = plan({"--model", "gpt:tiny", "--world", "2"});
  ASSERT_EQ(open.exit_code, 0) << open.err;
  EXPECT_THAT(open.out, HasSubstr("train_micro_batch_size_per_gpu is not given: planned for micro-batches of 1 sample. "
                                  "For more: --set train_micro_batch_size_per_gpu=8, for instance\n"));
  EXPECT_THAT(open.out, Not(HasSubstr("failed")));
  const auto json = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"--model", "gpt:tiny", "--json"});
    return Json::parse(plan(more).out);
  };
  const Json assumed = json({}), given = json({"--set", "train_micro_batch_size_per_gpu=1"});
  EXPECT_EQ(assumed.at("micro_batch_assumed"), Json(true));
  EXPECT_EQ(given.find("micro_batch_assumed"), nullptr);
  EXPECT_EQ(assumed.at("activations"), given.at("activations"));
  // Half the tokens, less than half of what forward keeps: scores grow with their square.
  const Json half = json({"--seq", "64"});
  EXPECT_LE(2 * half.at("activations").at("kept_bytes").as_integer(),
            assumed.at("activations").at("kept_bytes").as_integer() + 64);
  EXPECT_THAT(plan({"--model", "gpt:tiny", "--seq", "4096"}).out,
              HasSubstr("which is not known (a forward without values failed: model 'gpt', forward: input_ids: 4096 "
                        "positions, this model has 128."));
}

TEST_F(Plan, IsMadeForGpusOnAMachineWithoutAny) {
  const std::vector<std::string> words = {"--model", "gpt:tiny", "--world", "2", "--set", "optimizer.type=AdamW"};
  std::vector<std::string> on_gpu = words;
  on_gpu.insert(on_gpu.end(), {"--device", "cuda"});
  const ProcessResult result = plan(on_gpu);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("2 processes, 2 of them on a host, on cuda\n"));
  EXPECT_THAT(result.out, HasSubstr(">: as configured. Memory is that of a GPU.\n"));
  EXPECT_THAT(result.out, Not(HasSubstr("not in this build")));
}

TEST_F(Plan, SaysWhatALayoutLeavesOfAttention) {
  std::ofstream(folder_ / "sparse.json") << R"({"train_micro_batch_size_per_gpu": 3, "gradient_clipping": 1.0,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.001}},
    "sparse_attention": {"mode": "bslongformer", "num_sliding_window_blocks": 3, "global_block_indices": [0]}})";
  const ProcessResult result = run_capstan(folder_, {"plan", "--config", "sparse.json", "--model", "gpt:tiny"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  // Eight blocks of 16: 21 of the triangle's 36 cells, for 3 samples, 4 layers, 4 heads.
  EXPECT_THAT(result.out, HasSubstr("attention over the blocks of 'bslongformer' (sparse_attention.mode)\n"
                                    "  4 calls in a micro-batch's forward: 258,048 of 442,368 scores, 58.3 %\n"));
  const ProcessResult json = run_capstan(folder_, {"plan", "--config", "sparse.json", "--model", "gpt:tiny", "--json"});
  EXPECT_EQ(Json::parse(json.out).at("attention").at("scores"), Json(3.0 * 16 * 21 * 256));
  EXPECT_EQ(Json::parse(json.out).at("attention").at("dense_scores"), Json(3.0 * 16 * 36 * 256));

  EXPECT_THAT(plan({"--model", "gpt:tiny"}).out, Not(HasSubstr("attention over")));
  const ProcessResult none = run_capstan(folder_, {"plan", "--config", "sparse.json", "--model", "mlp"});
  EXPECT_THAT(none.out, HasSubstr("the model calls no attention that can be sparse"));
}

TEST_F(Plan, CountsTheSnapshotsOfAnElasticLaunch) {
  std::ofstream(folder_ / "elastic.json") << R"({"gradient_clipping": 1.0,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.001}},
    "elasticity": {"enabled": true, "max_train_batch_size": 64, "micro_batch_sizes": [2, 4], "version": 0.1}})";
  const auto planned = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words = {"plan", "--config", "elastic.json", "--model", "gpt:tiny", "--world", "4"};
    words.insert(words.end(), more.begin(), more.end());
    const ProcessResult result = run_capstan(folder_, words);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out;
  };
  EXPECT_THAT(planned({}), ContainsRegex("  snapshots of an elastic launch +[0-9.]+ MB +host, /dev/shm"));
  const Json one_host = Json::parse(planned({"--json"}));
  // Two of each part: an fp32 master and Adam's two moments of every parameter, and a counter of 8 bytes of each
  // tensor, a quarter of them on each rank.
  const std::int64_t whole = 12 * one_host.at("parameters").as_integer() + 8 * one_host.at("tensors").as_integer();
  const std::int64_t parts = 2 * (whole / 4);
  EXPECT_EQ(one_host.at("snapshots"), Json(parts));
  // And with two hosts copies of one other host's.
  const Json two_hosts = Json::parse(planned({"--local-world", "2", "--json"}));
  EXPECT_EQ(two_hosts.at("snapshots"), Json(2 * parts));
  bool told = false;
  for (const Json& limit : two_hosts.at("limits").as_array()) {
    if (limit.at("what").as_string().find(", snapshots") == std::string::npos) continue;
    EXPECT_EQ(limit.at("needed"), Json(2 * 2 * parts));
    told = true;
  }
  EXPECT_TRUE(told);
  EXPECT_EQ(Json::parse(plan({"--model", "gpt:tiny", "--json"}).out).find("snapshots"), nullptr);
}

TEST_F(Plan, OneProcessSendsNothing) {
  EXPECT_THAT(plan({"--model", "gpt:tiny"}).out, HasSubstr("sent in a step: nothing, with one process"));
}

TEST_F(Plan, SaysWhyStage3NeedsMoreThanStage2) {
  const std::string out = plan({"--model", "gpt:124m", "--world", "8"}).out;
  EXPECT_THAT(out,
              ContainsRegex("Stage 3 needs more than stage 2: it holds .* of live parameters.* beside its shards"));
  EXPECT_THAT(out, HasSubstr("A lower stage3_max_reuse_distance (now 1,000,000,000) keeps fewer gathered."));
  // Most parameters are used again after more elements than that: they are not kept from forward to backward.
  const std::string lean =
      plan({"--model", "gpt:124m", "--world", "8", "--set", "zero_optimization.stage3_max_reuse_distance=10000000"})
          .out;
  EXPECT_THAT(lean, Not(HasSubstr("Stage 3 needs more")));
}

TEST_F(Plan, CountsEveryOffloadOfTheLanguage) {
  const std::string out = plan({"--model", "gpt:tiny", "--world", "4"}).out;
  EXPECT_THAT(out, ContainsRegex("\n  3      none               cpu  "));
  EXPECT_THAT(out, ContainsRegex("\n  3      nvme               nvme "));
  EXPECT_THAT(out, Not(HasSubstr("parameters on ")));
  EXPECT_THAT(out, Not(HasSubstr("cannot run it as configured")));
}

TEST_F(Plan, CountsWhatAStoreHoldsAndTheRoomThatItsFolderHas) {
  std::ofstream(folder_ / "away.json") << R"({"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 1,
    "optimizer": {"type": "AdamW"}, "zero_optimization": {"stage": 3, "stage3_max_reuse_distance": 0},
    "capstan": {"offload": {"optimizer": {"type": "file_state", "params": {"folder": "swap"}},
                            "parameters": {"type": "file_state", "params": {"folder": "swap"}}}}})";
  const ProcessResult result = run_capstan(folder_, {"plan", "--config", "away.json", "--model", "gpt:1.5b", "--json",
                                                     "--plugin-path", CAPSTAN_TEST_BUILD_DIR "/tests/probe_plugins"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json json = Json::parse(result.out);
  const std::int64_t elements = json.at("parameters").as_integer();
  // Parameters, two moments and gradients, but for the parameters of at most 100,000 elements.
  const std::int64_t disk = json.at("configured").at("disk").as_integer();
  EXPECT_LE(disk, 16 * elements);
  EXPECT_GE(disk, 16 * elements - elements / 100);
  EXPECT_LT(json.at("process").as_integer(), 1'000'000'000);
  bool counted = false;
  for (const Json& limit : json.at("limits").as_array()) {
    counted = counted || (limit.at("what").as_string().ends_with(", offload") && limit.at("needed") == Json(disk));
  }
  EXPECT_TRUE(counted) << result.out;
}

TEST_F(Plan, HasNoWordOnHowStepsClip) {
  std::ofstream(folder_ / "bare.json") << R"({"train_micro_batch_size_per_gpu": 1})";
  const ProcessResult result = run_capstan(folder_, {"plan", "--config", "bare.json", "--model", "gpt:tiny"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, Not(HasSubstr("gradient_clipping")));
}

TEST_F(Plan, NamesWhatIsWrong) {
  const auto expect = [&](const std::vector<std::string>& words, int exit_code, const std::string& message) {
    const ProcessResult result = plan(words);
    EXPECT_EQ(result.exit_code, exit_code) << message;
    EXPECT_THAT(result.err, HasSubstr(message));
  };
  expect({"--model", "gpx"}, 3, "capstan.model.type: no plugin provides a model 'gpx'. Did you mean 'gpt'");
  expect({}, 3, "capstan.model: not given. Name a model with --model, for instance --model gpt:124m");
  expect({"--model", "gpt:tiny", "--world", "0"}, 2, "--world: must be 1 to 1,000,000, got 0.");
  expect({"--model", "gpt:tiny", "--world", "many"}, 2, "--world: 'many' is not a whole number.");
  expect({"--model", "gpt:tiny", "--world", "6", "--local-world", "4"}, 2,
         "--local-world: 4 processes a host do not make up 6. Give a divisor of it.");
  expect({"--model", "gpt:tiny", "--set", "zero_optimization.stages=1"}, 3, "Did you mean 'stage'");
  const std::string reads_values = R"(capstan.model={"type": "gpt", "params": {"init": "formula"}})";
  expect({"--set", reads_values}, 4, "Where its code reads values while it is built, --with-values builds it whole");
  EXPECT_EQ(plan({"--set", reads_values, "--with-values"}).exit_code, 0);
}

}  // namespace
}  // namespace capstan::cli
