// A run's folders: of checkpoints and of metrics. Another run does not get into them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>

#include "core/checkpoint/checkpoint_folder.hpp"
#include "tests/cli/programs.hpp"

namespace capstan::cli {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kConfig = R"({
  "train_batch_size": 4, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": null,
  "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}, "steps_per_print": null,
  "csv_monitor": {"enabled": true, "output_path": "metrics", "job_name": "run"},
  "tensorboard": {"enabled": true, "output_path": "metrics", "job_name": "board"},
  "capstan": {"model": {"type": "mlp", "params": {"d": 8, "hidden": 8, "seq": 16}}}
})";

std::vector<pid_t> children_of(pid_t launcher) {
  const std::string id = std::to_string(launcher);
  std::ifstream children("/proc/" + id + "/task/" + id + "/children");
  return {std::istream_iterator<pid_t>(children), {}};
}

class SaveFolder : public ::testing::Test {
 protected:
  SaveFolder() {
    write_bytes(folder_ / "config.json", kConfig);
    write_bytes(folder_ / "text.txt", some_text());
  }
  static std::vector<std::string> words(const std::string& steps, const std::vector<std::string>& more) {
    std::vector<std::string> words = {"train", "--config", "config.json", "--data", "text.txt", "--steps", steps};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  ProcessResult train(const std::string& steps, const std::vector<std::string>& more) const {
    return run_capstan(folder_, words(steps, more));
  }
  void trained(const std::string& steps, const std::vector<std::string>& more) const {
    const ProcessResult result = train(steps, more);
    ASSERT_EQ(result.exit_code, 0) << result.err;
  }
  std::string latest(const std::string& dir) const { return read_bytes(folder_ / dir / "latest"); }
  std::map<std::string, std::string> files(const std::string& dir) const {
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::recursive_directory_iterator(folder_ / dir)) {
      if (entry.is_regular_file()) files[entry.path().string()] = read_bytes(entry.path());
    }
    return files;
  }
  std::string losses(const std::string& dir) const {
    return read_bytes(folder_ / dir / "Train_Samples_train_loss.csv");
  }
  /// The numbers in the first column.
  std::vector<int> samples(const std::string& dir) const {
    std::vector<int> samples;
    std::istringstream lines(losses(dir));
    std::string line;
    std::getline(lines, line);
    while (std::getline(lines, line)) samples.push_back(std::stoi(line));
    return samples;
  }

  TemporaryFolder folder_;
};

constexpr const char* kRefusal =
    "--save ck: the folder holds checkpoints of another run, 'global_step6' for instance. To continue that run, give "
    "--resume ck. To replace its checkpoints where names are equal, give --overwrite. To keep both runs, name another "
    "folder.";

TEST_F(SaveFolder, OfAnotherRunIsRefusedBeforeTheFirstStepWithTheThreeWaysOn) {
  trained("6", {"--save", "ck", "--save-every", "2"});
  const auto before = files("ck");

  const ProcessResult second = train("3", {"--save", "ck", "--save-every", "1", "--keep", "1"});
  EXPECT_EQ(second.exit_code, 1);
  EXPECT_THAT(second.err, HasSubstr(kRefusal));
  std::vector<std::string> launched = words("3", {"--save", "ck"});
  launched.insert(launched.begin(), {"launch", "-n", "2"});
  const ProcessResult ranks = run_capstan(folder_, launched);
  EXPECT_EQ(ranks.exit_code, 1);
  EXPECT_THAT(ranks.err, HasSubstr(kRefusal));
  EXPECT_EQ(ranks.err.find(kRefusal), ranks.err.rfind(kRefusal)) << "said once: " << ranks.err;
  EXPECT_EQ(files("ck"), before);
  EXPECT_FALSE(fs::exists(folder_ / "metrics/run-2")) << "a step was trained";

  trained("7", {"--save", "ck", "--resume", "ck"});
  trained("1", {"--save", "another"});
}

TEST_F(SaveFolder, IsKnownByADeepSpeedCheckpointAndNotByOtherFiles) {
  fs::create_directories(folder_ / "ck/global_step9");
  write_bytes(folder_ / "ck/notes.txt", "mine");
  fs::create_directories(folder_ / "ck/old/global_step3");
  trained("1", {"--save", "ck"});

  fs::create_directories(folder_ / "theirs/global_step9");
  write_bytes(folder_ / "theirs/global_step9/mp_rank_00_model_states.pt", "");
  EXPECT_THAT(train("1", {"--save", "theirs"}).err,
              HasSubstr("the folder holds checkpoints of another run, 'global_step9' for instance."));
}

TEST_F(SaveFolder, IsSharedWhereAskedAndKeepCountsTheRunsOwnCheckpoints) {
  trained("12", {"--save", "ck", "--save-every", "4"});
  const auto before = files("ck/global_step12");

  trained("6", {"--save", "ck", "--save-every", "1", "--keep", "3", "--seed", "9", "--overwrite"});
  EXPECT_THAT(checkpoint_tags(folder_ / "ck"),
              ElementsAre("global_step4", "global_step5", "global_step6", "global_step8", "global_step12"));
  EXPECT_EQ(latest("ck"), "global_step6");

  trained("7", {"--save", "ck", "--keep", "3", "--seed", "9", "--resume", "ck"});
  EXPECT_THAT(checkpoint_tags(folder_ / "ck"),
              ElementsAre("global_step5", "global_step6", "global_step7", "global_step8", "global_step12"));
  EXPECT_EQ(files("ck/global_step12"), before);
}

TEST_F(SaveFolder, OfARunThatGoesOnInAnotherOneIsThatRunsFromThenOn) {
  trained("3", {"--save", "first"});
  trained("6", {"--save", "ck", "--resume", "first"});
  trained("2", {"--save", "other"});

  EXPECT_THAT(train("9", {"--save", "ck", "--resume", "first"}).err, HasSubstr(kRefusal));
  EXPECT_THAT(train("9", {"--save", "other", "--resume", "first"}).err, HasSubstr("--save other: the folder holds"));
  trained("9", {"--save", "./ck/", "--resume", "ck"});
  EXPECT_EQ(latest("ck"), "global_step9");
}

TEST_F(SaveFolder, WithoutAFolderThereIsNothingToOverwrite) {
  const ProcessResult result = train("1", {"--overwrite"});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err, HasSubstr("capstan.run.overwrite: has no effect without capstan.run.save_dir (--save)."));
}

// As torchrun's agent starts processes, here through a script that stands between the two.
TEST_F(SaveFolder, IsTheSameRunsWhereItsAgentStartsItAgain) {
  write_bytes(folder_ / "start.sh", "\"$@\"; exit $?\n");
  std::string command = kCapstan;
  for (const std::string& word : words("3", {"--save", "ck"})) command += " " + word;
  write_bytes(folder_ / "agent.sh",
              "start() { TORCHELASTIC_RUN_ID=none RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 "
              "MASTER_ADDR=127.0.0.1 MASTER_PORT=1 sh start.sh " +
                  command + "; }\nstart && start\n");
  const auto agent = [&] { return run_process({"sh", "agent.sh"}, {.folder = folder_.path()}); };

  const ProcessResult first = agent();
  EXPECT_EQ(first.exit_code, 0) << first.err;
  EXPECT_THAT(samples("metrics/run"), ElementsAre(4, 8, 12)) << "the second start took out what it wrote again";
  const ProcessResult other = agent();
  EXPECT_EQ(other.exit_code, 1);
  EXPECT_THAT(other.err, HasSubstr("--save ck: the folder holds checkpoints of another run, 'global_step3'"));
}

TEST_F(SaveFolder, HasMetricsBesideItThatAreTheRunsAlone) {
  trained("2", {"--save", "a"});
  const std::string first = losses("metrics/run");
  const ProcessResult second = train("3", {"--save", "b", "--seed", "9"});
  ASSERT_EQ(second.exit_code, 0) << second.err;
  EXPECT_THAT(second.err,
              HasSubstr("'metrics/run' holds the metrics of another run; this run's are in 'metrics/run-2'."));
  EXPECT_THAT(second.err,
              HasSubstr("'metrics/board' holds the metrics of another run; this run's are in 'metrics/board-2'."));
  EXPECT_EQ(losses("metrics/run"), first);
  EXPECT_THAT(samples("metrics/run-2"), ElementsAre(4, 8, 12));

  // Each goes on in its own, and what was written behind the checkpoint is written once.
  write_bytes(folder_ / "metrics/run/Train_Samples_train_loss.csv", first + "12,9.0\r\n");
  trained("4", {"--resume", "a"});
  trained("4", {"--resume", "b", "--seed", "9"});
  EXPECT_THAT(samples("metrics/run"), ElementsAre(4, 8, 12, 16));
  EXPECT_THAT(losses("metrics/run"), Not(HasSubstr("9.0")));
  EXPECT_THAT(samples("metrics/run-2"), ElementsAre(4, 8, 12, 16));
  EXPECT_FALSE(fs::exists(folder_ / "metrics/run-3"));
}

TEST_F(SaveFolder, OfAnOlderReleaseNamesNoRunAndItsMetricsGoOn) {
  trained("2", {"--save", "a"});
  fs::remove(folder_ / "metrics/run/.capstan_run");
  trained("3", {"--resume", "a"});
  EXPECT_THAT(samples("metrics/run"), ElementsAre(4, 8, 12));
  EXPECT_EQ(run_capstan(folder_, {"report", "metrics/run"}).exit_code, 0);
}

TEST_F(SaveFolder, IsSavedIntoWhenOneOfSeveralProcessesIsInterruptedInAnEvaluation) {
  write_bytes(folder_ / "held_out.txt", "");
  fs::resize_file(folder_ / "held_out.txt", std::uintmax_t{4} << 30);  // hours; no byte of it is on the disk
  std::vector<std::string> command = words(
      "100000000", {"--save", "ck", "--eval-data", "held_out.txt", "--eval-every", "2", "--set", "steps_per_print=1"});
  command.insert(command.begin(), {kCapstan, "launch", "-n", "2"});
  Process run(command, {.folder = folder_.path()});
  ASSERT_TRUE(run.wait_for_output("global_step=2,"));
  const std::vector<pid_t> ranks = children_of(run.pid());
  ASSERT_EQ(ranks.size(), 2u);
  ::kill(ranks[1], SIGTERM);
  const ProcessResult result = run.wait();

  EXPECT_EQ(result.exit_code, 130) << result.err;
  EXPECT_THAT(result.out, HasSubstr("saved ck/global_step2"));
  EXPECT_THAT(result.out, Not(HasSubstr("eval_loss")));
}

}  // namespace
}  // namespace capstan::cli
