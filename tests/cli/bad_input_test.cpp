// Data and checkpoints that a run cannot use: each is one clear sentence and exit code 1, and nothing is lost.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/cli/capstan_process.hpp"
#include "tests/cli/training_folder.hpp"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using test::capstan_words;
using test::read_bytes;
using test::run_capstan;
using test::run_program;
using test::TrainingFolder;
using ::testing::HasSubstr;

void expect_refused(const test::ProgramEnd& end, const std::string& sentence) {
  EXPECT_EQ(end.exit_code, 1) << end.text;
  EXPECT_THAT(end.text, HasSubstr("capstan: error: " + sentence));
}

TEST(BadData, IsNamed) {
  const TrainingFolder folder;
  const auto train_on = [&](const std::string& data) {
    return run_capstan({"train", "--config", folder.path_of("config.json"), "--steps", "1", "--data", data});
  };
  const auto empty = folder.write("empty.txt", ""), brief = folder.write("brief.txt", "too short");
  const auto odd = folder.write("odd.bin", "abc"), missing = folder.path_of("missing.txt");
  const auto wide = folder.write("wide.bin", std::string(200, '\x7f'));

  expect_refused(train_on(missing), "data: '" + missing + "': No such file or directory.");
  expect_refused(train_on(empty), "data: '" + empty + "' is empty.");
  expect_refused(train_on(brief), "data: '" + brief + "' holds 9 tokens; a sequence of 16 needs 16 + 1.");
  expect_refused(train_on(odd), "data: '" + odd + "' has 3 bytes, which is not a whole number of 16-bit tokens.");
  expect_refused(train_on(wide), "data: '" + wide + "', token 0 is 32639, but the model's vocabulary has 256 entries.");
}

TEST(BadData, ThatMayNotBeReadIsNamed) {
  const TrainingFolder folder;
  const auto closed = folder.write("closed.txt", std::string(1000, 'x'));
  chmod(folder.path().c_str(), 0755);
  chmod(closed.c_str(), 0);
  // The superuser may read everything, so step down.
  const auto step_down = [] {
    if (geteuid() == 0 && (setegid(65534) != 0 || seteuid(65534) != 0)) _exit(126);
  };
  const auto end = run_program(
      capstan_words({"train", "--config", folder.path_of("config.json"), "--steps", "1", "--data", closed}), step_down);
  if (end.exit_code == 127) GTEST_SKIP() << "the build folder may not be entered by another user";

  expect_refused(end, "data: '" + closed + "': Permission denied.");
}

/// A folder with checkpoints of steps 2 and 4.
class BadCheckpoint : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto end = run_capstan(folder_.train({"--steps", "4", "--save", dir_, "--save-every", "2"}));
    ASSERT_EQ(end.exit_code, 0) << end.text;
  }

  test::ProgramEnd resume(const std::string& config = "config.json") const {
    return run_capstan(folder_.train({"--steps", "6", "--save", dir_, "--resume", dir_}, config));
  }

  TrainingFolder folder_;
  const std::string dir_ = folder_.path_of("ck");
};

TEST_F(BadCheckpoint, ThatWasDamagedIsNamedAndAnOlderOneStillWorks) {
  const std::string name = dir_ + "/global_step4/rank_00000.safetensors", whole = read_bytes(name);
  std::string flipped = whole;
  flipped[flipped.size() / 2] ^= 16;

  folder_.write("ck/global_step4/rank_00000.safetensors", flipped);
  expect_refused(resume(), "checkpoint file '" + name + "': ");
  folder_.write("ck/global_step4/rank_00000.safetensors", whole.substr(0, whole.size() / 2));
  expect_refused(resume(), "checkpoint file '" + name + "': it has " + std::to_string(whole.size() / 2) + " bytes, " +
                               std::to_string(whole.size()) +
                               " were written: it was cut off. Other checkpoints there: "
                               "global_step2.");

  const auto older = run_capstan(folder_.train({"--steps", "3", "--resume", dir_ + ":global_step2"}));
  EXPECT_EQ(older.exit_code, 0) << older.text;
}

TEST_F(BadCheckpoint, OfAnotherModelOrOptimizerIsRefused) {
  const std::string adam = R"("optimizer": {"type": "AdamW", "params": {"lr": 1e-2}})";
  const std::string mlp = R"({"type": "mlp", "params": {"d": 8, "hidden": 16, "seq": 16}})";
  folder_.write_config("wider.json", adam, R"({"type": "mlp", "params": {"d": 8, "hidden": 32, "seq": 16}})");
  folder_.write_config("deeper.json", adam,
                       R"({"type": "mlp", "params": {"d": 8, "hidden": 16, "layers": 2, "seq": 16}})");
  folder_.write_config("adam.json", R"("optimizer": {"type": "Adam", "params": {"lr": 1e-2}})", mlp);
  const std::string where = dir_ + "/global_step4: ";

  const auto wider = resume("wider.json");
  expect_refused(wider, where);
  EXPECT_THAT(wider.text, HasSubstr("It was saved from another model."));
  const auto deeper = resume("deeper.json");
  expect_refused(deeper, where + "holds nothing for ");
  const auto optimizer = resume("adam.json");
  expect_refused(optimizer, where + "was saved with optimizer AdamW, this run uses Adam.");
  EXPECT_EQ(resume().exit_code, 0);
}

TEST_F(BadCheckpoint, OfAnElasticRunKeepsWhatDecidesTheBatch) {
  const auto elastic = [&](const std::string& largest, const std::vector<std::string>& more) {
    std::vector<std::string> words = folder_.train(more);
    for (const char* key : {"train_batch_size=null", "gradient_accumulation_steps=null"})
      words.insert(words.end(), {"--set", key});
    words.insert(words.end(), {"--set", R"(elasticity={"enabled": true, "micro_batch_sizes": [1, 2], "version": 0.1,)"
                                        R"( "max_train_batch_size": )" +
                                            largest + "}"});
    return run_capstan(words);
  };
  const std::string dir = folder_.path_of("elastic");
  const auto first = elastic("8", {"--steps", "2", "--save", dir});
  ASSERT_EQ(first.exit_code, 0) << first.text;

  expect_refused(elastic("16", {"--steps", "4", "--resume", dir}),
                 dir + "/global_step2: elasticity.max_train_batch_size is 16, and the checkpoint was saved with 8.");
  EXPECT_EQ(elastic("8", {"--steps", "4", "--resume", dir}).exit_code, 0);
}

TEST_F(BadCheckpoint, ThatIsNotThereIsTold) {
  const auto from = [&](const std::string& place) {
    return run_capstan(folder_.train({"--steps", "6", "--resume", place}));
  };

  expect_refused(from(dir_ + ":global_step3"),
                 "checkpoint '" + dir_ +
                     "/global_step3': there is no such folder. Checkpoints there: global_step2, "
                     "global_step4.");
  expect_refused(from(folder_.path_of("none")),
                 "checkpoints in '" + folder_.path_of("none") + "': there is no such folder.");
  expect_refused(from(folder_.path_of("csv")),
                 "checkpoints in '" + folder_.path_of("csv") + "': there is no file 'latest' to tell which.");
}

TEST(BadOptimizer, IsNamedWithTheUpdateAndTheParameter) {
  const TrainingFolder folder;
  const auto refuse = [] { ::setenv("CAPSTAN_BAD", "refuse", 1); };
  auto words = folder.train({"--steps", "2", "--plugin-path", CAPSTAN_TEST_BUILD_DIR "/tests/bad_plugins"});
  words.insert(words.end(), {"--set", R"(optimizer={"type": "Bad"})"});
  const auto end = run_program(capstan_words(words), refuse);

  EXPECT_EQ(end.exit_code, 4) << end.text;
  EXPECT_THAT(end.text,
              ::testing::ContainsRegex("optimizer 'Bad' failed at update 0 on rank 0: parameter '[a-z0-9_.]+': Bad "
                                       "updates float32 parameters; this one is bfloat16."));
}

}  // namespace
}  // namespace capstan
