// capstan.run.keep_best and patience, as a user trains with them.

#include <gmock/gmock.h>

#include <regex>

#include "core/checkpoint/checkpoint_folder.hpp"
#include "tests/cli/elastic_run.hpp"
#include "tests/cli/programs.hpp"

namespace capstan::cli {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

/// A small model learns the words of a text by heart, so that the loss of another text falls first and then rises.
class BestCheckpoint : public ::testing::Test {
 protected:
  BestCheckpoint() {
    write_bytes(folder_ / "config.json", R"({
      "train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"lr": 0.02}}, "steps_per_print": null,
      "capstan": {"model": {"type": "mlp", "params": {"d": 8, "hidden": 32, "seq": 16}}}})");
    write_bytes(folder_ / "text.txt", some_text());
    std::string other;
    for (int i = 0; i < 80; ++i) other += i % 2 ? "a drum reads " : "the lute hears ";
    write_bytes(folder_ / "held_out.txt", other);
  }

  ProcessResult train(const std::string& steps, const std::vector<std::string>& more,
                      const std::string& dir = "ckpt") const {
    std::vector<std::string> words = {
        "train", "--config", "config.json", "--data",       "text.txt", "--eval-data", "held_out.txt", "--steps",
        steps,   "--save",   dir,           "--eval-every", "2"};
    words.insert(words.end(), more.begin(), more.end());
    return run_capstan(folder_, words);
  }

  /// The loss of each evaluation that a run has printed, by its step.
  static std::map<std::int64_t, double> losses(const std::string& out) {
    std::map<std::int64_t, double> found;
    static const std::regex kLine("step=([0-9]+), eval_loss=([0-9.]+)");
    for (std::sregex_iterator line(out.begin(), out.end(), kLine), end; line != end; ++line) {
      found[std::stoll((*line)[1])] = std::stod((*line)[2]);
    }
    return found;
  }
  static std::int64_t lowest(const std::map<std::int64_t, double>& losses) {
    return std::min_element(losses.begin(), losses.end(),
                            [](const auto& a, const auto& b) { return a.second < b.second; })
        ->first;
  }
  std::string best(const std::string& dir = "ckpt") const { return read_bytes(folder_ / dir / "best"); }

  TemporaryFolder folder_;
};

TEST_F(BestCheckpoint, IsSavedKeptAndNamed) {
  const ProcessResult result = train("30", {"--keep-best", "--keep", "1"}, "ckpt/");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto found = losses(result.out);
  const std::int64_t step = lowest(found);
  ASSERT_EQ(found.size(), 15u);
  ASSERT_GT(step, 2);
  ASSERT_LT(step, 30);
  EXPECT_EQ(best(), "global_step" + std::to_string(step));
  EXPECT_EQ(checkpoint_tags(folder_ / "ckpt"), (std::vector<std::string>{best(), "global_step30"}));
  EXPECT_EQ(read_bytes(folder_ / "ckpt/latest"), "global_step30");
  EXPECT_THAT(result.out, HasSubstr("checkpoints    ckpt/, at the end, the newest 1 kept, and the best\n"));
  EXPECT_THAT(result.out, HasSubstr("\nbest: step " + std::to_string(step) + " (eval_loss "));

  const ProcessResult evaluated =
      run_capstan(folder_, {"eval", "--config", "config.json", "--data", "held_out.txt", "--checkpoint", "ckpt:best"});
  ASSERT_EQ(evaluated.exit_code, 0) << evaluated.err;
  ASSERT_TRUE(losses(evaluated.out).contains(step)) << evaluated.out;
  EXPECT_NEAR(losses(evaluated.out).at(step), found.at(step), 1e-4);
  const ProcessResult exported =
      run_capstan(folder_, {"export", "--checkpoint", "ckpt:best", "--to", "safetensors", "--out", "best.safetensors"});
  EXPECT_EQ(exported.exit_code, 0) << exported.err;
  const ProcessResult resumed = train("31", {"--resume", "ckpt:best"});
  EXPECT_THAT(resumed.out, HasSubstr("resumed from ckpt/" + best() + " at step " + std::to_string(step)));
}

TEST_F(BestCheckpoint, EndsTheRunOnceNoLossWasLowerForLong) {
  const auto all = losses(train("40", {}, "all").out);
  const std::int64_t step = lowest(all);
  const ProcessResult result = train("40", {"--patience", "3"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const auto found = losses(result.out);
  ASSERT_LT(step, 30);
  EXPECT_EQ(found.rbegin()->first, step + 6);
  EXPECT_EQ(read_bytes(folder_ / "ckpt/latest"), "global_step" + std::to_string(step + 6));
  EXPECT_THAT(result.out, HasSubstr("stopped after step " + std::to_string(step + 6) +
                                    ": 3 evaluations in a row had no lower loss than that after step " +
                                    std::to_string(step) + " (eval_loss "));
  EXPECT_THAT(result.out, HasSubstr(" and at the end, until 3 evaluations in a row have no lower loss\n"));
  EXPECT_FALSE(fs::exists(folder_ / "ckpt/best"));

  // A run that has stopped stays so, until it is allowed more.
  const ProcessResult again = train("40", {"--patience", "3", "--resume", "ckpt/"});
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_THAT(again.out, HasSubstr("stopped after step "));
  EXPECT_THAT(again.out, Not(HasSubstr("trained ")));
  const ProcessResult longer = train("40", {"--patience", "4", "--resume", "ckpt/"});
  EXPECT_EQ(losses(longer.out).rbegin()->first, step + 8) << longer.out << longer.err;
}

TEST_F(BestCheckpoint, IsTheSameOfARunThatWasResumedAndOfSeveralProcesses) {
  const ProcessResult whole = train("30", {"--keep-best", "--patience", "4"}, "whole");
  ASSERT_EQ(whole.exit_code, 0) << whole.err;
  const std::int64_t end = losses(whole.out).rbegin()->first;
  train(std::to_string(end - 4), {"--keep-best", "--patience", "4"});
  const ProcessResult rest = train("30", {"--keep-best", "--patience", "4", "--resume", "ckpt/"});
  EXPECT_EQ(losses(rest.out).rbegin()->first, end) << rest.out << rest.err;
  EXPECT_EQ(best(), best("whole"));

  const ProcessResult two = run_capstan(folder_, {"launch",
                                                  "-n",
                                                  "2",
                                                  "train",
                                                  "--config",
                                                  "config.json",
                                                  "--data",
                                                  "text.txt",
                                                  "--eval-data",
                                                  "held_out.txt",
                                                  "--steps",
                                                  "30",
                                                  "--save",
                                                  "two",
                                                  "--eval-every",
                                                  "2",
                                                  "--keep-best",
                                                  "--patience",
                                                  "4",
                                                  "--set",
                                                  "zero_optimization.stage=2"});
  EXPECT_EQ(two.exit_code, 0) << two.err;
  EXPECT_EQ(losses(two.out).rbegin()->first, end);
  EXPECT_EQ(best("two"), best("whole"));
}

TEST_F(BestCheckpoint, IsThatOfAnUndisturbedRunWhereAnElasticOneLosesAProcess) {
  const std::vector<std::string> evaluating = {
      "--eval-data", "held_out.txt", "--eval-every", "1", "--keep-best", "--keep", "1", "--patience", "300"};
  const auto words = [&](const std::string& dir) {
    std::vector<std::string> words = {
        "--config",
        "config.json",
        "--data",
        "text.txt",
        "--steps",
        "100000",
        "--no-progress",
        "--save",
        dir,
        "--set",
        "train_batch_size=null",
        "--set",
        R"(elasticity={"enabled": true, "max_train_batch_size": 8, "micro_batch_sizes": [2, 4], "version": 0.1})"};
    words.insert(words.end(), evaluating.begin(), evaluating.end());
    return words;
  };
  const ProcessResult whole = ElasticRun(folder_, {"-n", "2", "--elastic", "2:2"}, words("whole")).wait();
  ASSERT_EQ(whole.exit_code, 0) << whole.err;
  ElasticRun run(folder_, {"-n", "2", "--elastic", "2:2"}, words("ckpt"));
  for (const std::int64_t generation : {1, 2}) {
    ASSERT_TRUE(run.await(30 * generation, generation));  // behind the lowest loss
    ASSERT_NE(run.kill_rank(static_cast<std::size_t>(generation - 1)), 0);
  }
  const ProcessResult killed = run.wait();
  ASSERT_EQ(killed.exit_code, 0) << killed.err;
  EXPECT_THAT(killed.out, HasSubstr("2 processes lost"));
  const auto end_of = [](const std::string& out) { return out.substr(out.find("stopped after step "), 100); };
  EXPECT_EQ(end_of(killed.out), end_of(whole.out));
  EXPECT_EQ(best(), best("whole"));
}

TEST_F(BestCheckpoint, NeedsEvaluationsAndAFolder) {
  const auto refused = [&](const std::vector<std::string>& more, const char* text) {
    std::vector<std::string> words = {"train", "--config", "config.json", "--data", "text.txt", "--steps", "2"};
    words.insert(words.end(), more.begin(), more.end());
    const ProcessResult result = run_capstan(folder_, words);
    EXPECT_EQ(result.exit_code, 3) << result.out;
    EXPECT_THAT(result.err, HasSubstr(text));
  };
  refused({"--keep-best", "--eval-data", "held_out.txt", "--eval-every", "1"},
          "capstan.run.keep_best: has no effect without capstan.run.save_dir (--save).");
  refused({"--patience", "2"}, "capstan.run.patience: has no effect without capstan.data.eval_path (--eval-data).");
  refused({"--patience", "2", "--eval-data", "held_out.txt"},
          "capstan.run.patience: has no effect without capstan.run.eval_every (--eval-every).");
  fs::create_directories(folder_ / "taken/best");
  const ProcessResult taken = train("4", {"--keep-best"}, "taken");
  EXPECT_EQ(taken.exit_code, 1) << taken.out;
  EXPECT_THAT(taken.err, HasSubstr("'best' is a folder, and capstan.run.keep_best writes a file of that name."));
}

}  // namespace
}  // namespace capstan::cli
