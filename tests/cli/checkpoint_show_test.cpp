// `capstan checkpoint show`, and a run of DeepSpeed that `capstan train --resume` continues.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "core/text/json.hpp"
#include "tests/cli/capstan_process.hpp"
#include "tests/cli/training_folder.hpp"
#include "tests/support/readers.hpp"

namespace capstan {
namespace {

using test::run_capstan;
using test::TrainingFolder;
using testing::ContainsRegex;
using testing::HasSubstr;

std::string trained(const TrainingFolder& folder, const std::string& save, const std::vector<std::string>& more) {
  std::vector<std::string> words = more;
  words.insert(words.end(), {"--save", folder.path_of(save)});
  const auto result = run_capstan(folder.train(words));
  EXPECT_EQ(result.exit_code, 0) << result.text;
  return result.text;
}

/// The tensors of a checkpoint with their hashes, as JSON.
std::string hashes(const std::string& checkpoint) {
  const auto shown = run_capstan({"checkpoint", "show", checkpoint, "--hash", "--json"});
  EXPECT_EQ(shown.exit_code, 0) << shown.text;
  return Json::parse(shown.text).at("tensors").dump(1);
}

TEST(CheckpointShow, TellsOfStepsParametersAndStates) {
  const TrainingFolder folder;
  trained(folder, "ck", {"--steps", "4", "--save-every", "2"});
  const auto shown = run_capstan({"checkpoint", "show", folder.path_of("ck")});
  ASSERT_EQ(shown.exit_code, 0) << shown.text;
  EXPECT_THAT(shown.text, HasSubstr("global_step4, by Capstan: ZeRO stage 0, 1 process\n"
                                    "  step 4 (0 skipped), 16 samples; optimizer AdamW, scheduler WarmupLR\n"));
  EXPECT_THAT(shown.text, ContainsRegex("  [0-9]+ parameters, [0-9,]+ elements\n"
                                        "  states of the optimizer: exp_avg, exp_avg_sq, step\n"));
  EXPECT_THAT(shown.text, HasSubstr("  other tags: global_step2\n"));

  EXPECT_THAT(hashes(folder.path_of("ck")), HasSubstr("\"sha256\""));
  EXPECT_NE(hashes(folder.path_of("ck")), hashes(folder.path_of("ck:global_step2")));

  const auto missing = run_capstan({"checkpoint", "show", folder.path_of("ck:global_step3")});
  EXPECT_EQ(missing.exit_code, 1);
  EXPECT_THAT(missing.text, HasSubstr("there is no such folder. Checkpoints there: global_step2, global_step4."));
}

/// A folder of transformers' Trainer with DeepSpeed goes on, by its own config.json where no model is named.
void expect_trainer_goes_on(const std::string& model, const std::string& resumed_with) {
  const TrainingFolder folder;
  folder.write_config("model.json", R"("optimizer": {"type": "AdamW", "params": {"lr": 1e-2}})", model);
  folder.write("resumed.json", resumed_with.empty() ? test::read_bytes(folder / "model.json") : resumed_with);
  for (const auto& [save, steps] : {std::pair("whole", "6"), {"half", "4"}}) {
    const auto run = run_capstan(folder.train({"--steps", steps, "--save", folder.path_of(save)}, "model.json"));
    ASSERT_EQ(run.exit_code, 0) << run.text;
  }
  const auto exported =
      run_capstan({"export", "--checkpoint", folder.path_of("half"), "--to", "hf", "--out", folder.path_of("hf")});
  ASSERT_EQ(exported.exit_code, 0) << exported.text;
  const std::string command =
      test::reader_python() + " -W ignore " CAPSTAN_TEST_SOURCE_DIR "/tests/cli/trainer_folder.py " +
      folder.path_of("half") + " global_step4 " + folder.path_of("hf") + " " + folder.path_of("out/checkpoint-4");
  ASSERT_EQ(std::system(command.c_str()), 0);

  const auto resumed = run_capstan(folder.train(
      {"--steps", "6", "--resume", folder.path_of("out/checkpoint-4/"), "--save", folder.path_of("resumed")},
      "resumed.json"));
  ASSERT_EQ(resumed.exit_code, 0) << resumed.text;
  EXPECT_EQ(hashes(folder.path_of("resumed")), hashes(folder.path_of("whole")));
  const auto shown = run_capstan({"checkpoint", "show", folder.path_of("out/checkpoint-4")});
  EXPECT_THAT(shown.text, HasSubstr("  transformers' Trainer: step 4, epoch 0.25\n"));
  const auto listed = run_capstan({"checkpoint", "list", folder.path_of("out")});
  EXPECT_THAT(listed.text, ContainsRegex("checkpoint-4 +4 .*transformers, DeepSpeed 0.19.8 +whole"));
  const auto verified = run_capstan({"checkpoint", "verify", folder.path_of("out/checkpoint-4")});
  EXPECT_EQ(verified.exit_code, 0) << verified.text;
}

TEST(CheckpointShow, AFolderOfTheTrainerGoesOnWithMatricesThatLieTheOtherWayRound) {
  if (test::reader_python().empty()) GTEST_SKIP() << test::kNoReaders;
  expect_trainer_goes_on(R"({"type": "gpt", "params": {"layers": 1, "d": 8, "heads": 2, "seq": 16}})", "");
}

TEST(CheckpointShow, AFolderOfTheTrainerGoesOnWithTheModelOfItsConfigJson) {
  if (test::reader_python().empty()) GTEST_SKIP() << test::kNoReaders;
  const std::string config = R"({"model_type": "llama", "vocab_size": 256, "hidden_size": 8, "intermediate_size": 12,
      "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 16})";
  const std::string without_model = R"({"train_batch_size": 4, "gradient_accumulation_steps": 2,
      "steps_per_print": 1, "gradient_clipping": 1.0, "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}},
      "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 1e-2, "warmup_num_steps": 8}},
      "capstan": {"run": {"seed": 7}}})";
  expect_trainer_goes_on(R"({"type": "decoder", "params": {"config": )" + config + "}}", without_model);
}

TEST(CheckpointShow, ListPruneVerifyAndDiffTellOfAFolder) {
  const TrainingFolder folder;
  trained(folder, "ck", {"--steps", "6", "--save-every", "2"});
  const std::string ck = folder.path_of("ck");
  const auto listed = run_capstan({"checkpoint", "list", ck, "--json"});
  ASSERT_EQ(listed.exit_code, 0) << listed.text;
  const Json list = Json::parse(listed.text).at("checkpoints");
  ASSERT_EQ(list.size(), 3u);
  EXPECT_EQ(list.as_array()[2].at("tag"), Json("global_step6"));
  EXPECT_EQ(list.as_array()[2].at("latest"), Json(true));
  EXPECT_EQ(list.as_array()[0].at("whole"), Json(true));

  const auto differ = run_capstan({"checkpoint", "diff", ck + ":global_step2", ck + ":global_step4"});
  EXPECT_EQ(differ.exit_code, 1);
  EXPECT_THAT(differ.text, ContainsRegex("param of '[^']+': [0-9,]+ of [0-9,]+ elements differ, by "));
  EXPECT_THAT(differ.text, HasSubstr("global_steps: 2 / 4\n"));
  EXPECT_EQ(run_capstan({"checkpoint", "diff", ck, ck + "/global_step6"}).exit_code, 0);
  EXPECT_EQ(run_capstan({"checkpoint", "diff", ck, ck + ":global_step9"}).exit_code, 2);

  const auto tried = run_capstan({"checkpoint", "prune", ck, "--keep", "1", "--dry-run"});
  EXPECT_THAT(tried.text, ContainsRegex("would delete global_step2, .*\n(.|\n)*would free .* of 2 checkpoints"));
  EXPECT_THAT(run_capstan({"checkpoint", "verify", ck, "--all"}).text, HasSubstr("global_step2, by Capstan: whole: "));
  const auto pruned = run_capstan({"checkpoint", "prune", ck, "--keep", "1"});
  EXPECT_THAT(pruned.text, ContainsRegex("deletes global_step2, .*\n(.|\n)*freed .* of 2 checkpoints"));
  EXPECT_EQ(Json::parse(run_capstan({"checkpoint", "list", ck, "--json"}).text).at("checkpoints").size(), 1u);

  std::filesystem::resize_file(ck + "/global_step6/rank_00000.safetensors", 100);
  const auto damaged = run_capstan({"checkpoint", "verify", ck});
  EXPECT_EQ(damaged.exit_code, 1);
  EXPECT_THAT(damaged.text, HasSubstr("rank_00000.safetensors': it has 100 bytes"));
}

TEST(CheckpointShow, AResumedRunMayBeginItsStatesAndItsScheduleAnew) {
  const TrainingFolder folder;
  trained(folder, "ck", {"--steps", "4"});

  const std::string text = trained(folder, "anew",
                                   {"--steps", "6", "--resume", folder.path_of("ck"), "--fresh-optimizer",
                                    "--fresh-schedule", "--set", "optimizer.type=Adam"});
  EXPECT_THAT(text, HasSubstr("at step 4, with new states of the optimizer, with the schedule at its start"));
  const auto misused = run_capstan(folder.train({"--fresh-optimizer"}));
  EXPECT_EQ(misused.exit_code, 2) << misused.text;
}

TEST(CheckpointShow, ARunOfDeepSpeedThatIsResumedEndsAsTheOneThatWentOn) {
  if (test::reader_python().empty()) GTEST_SKIP() << test::kNoReaders;
  const TrainingFolder folder;
  trained(folder, "whole", {"--steps", "8"});
  trained(folder, "half", {"--steps", "4"});
  const std::string command = test::reader_python() +
                              " -W ignore " CAPSTAN_TEST_SOURCE_DIR
                              "/tests/core/checkpoint/deepspeed/write_checkpoints.py " +
                              folder.path_of("half") + " global_step4 " + folder.path().string() + " flat-2";
  ASSERT_EQ(std::system(command.c_str()), 0);
  const std::string text = trained(folder, "resumed", {"--steps", "8", "--resume", folder.path_of("flat-2")});
  EXPECT_THAT(text, HasSubstr("resumed from " + folder.path_of("flat-2") + "/global_step4 at step 4"));
  EXPECT_THAT(text, HasSubstr("was saved by 2 processes and goes on with 1."));
  EXPECT_EQ(hashes(folder.path_of("resumed")), hashes(folder.path_of("whole")));

  const auto shown = run_capstan({"checkpoint", "show", folder.path_of("flat-2")});
  EXPECT_THAT(shown.text, HasSubstr("global_step4, by DeepSpeed 0.19.8: ZeRO stage 2, 2 processes\n"));
  EXPECT_THAT(shown.text, HasSubstr("  client state: note, pair, big, tensor\n"));
}

}  // namespace
}  // namespace capstan
