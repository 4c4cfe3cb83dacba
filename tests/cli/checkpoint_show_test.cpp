// `capstan checkpoint show`, and a run of DeepSpeed that `capstan train --resume` continues.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
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
