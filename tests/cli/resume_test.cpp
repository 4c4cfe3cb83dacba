// Runs that were stopped, or killed, and went on: they end as if nothing had happened.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <random>

#include "core/checkpoint/checkpoint_folder.hpp"
#include "core/errors.hpp"
#include "tests/cli/capstan_process.hpp"
#include "tests/cli/training_folder.hpp"
#include "tests/core/checkpoint/sample_checkpoint.hpp"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using test::capstan_words;
using test::Program;
using test::read_bytes;
using test::run_capstan;
using test::TrainingFolder;

std::map<std::string, std::string> files_in(const fs::path& dir) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(dir)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with('.')) files[name] = read_bytes(entry.path());  // a hidden file names the run
  }
  return files;
}

/// Weights, optimizer state and counters equal to the last bit; what the configuration says of paths may differ.
void expect_same_run(const fs::path& a, const fs::path& b, const std::string& tag) {
  auto first = read_checkpoint(a, tag), second = read_checkpoint(b, tag);
  for (const char* key : {"config", "client_state", "run"}) {
    first.state.erase(key);
    second.state.erase(key);
  }
  test::expect_equal(first, second);
  EXPECT_EQ(read_bytes(a / tag / "rank_00000.safetensors"), read_bytes(b / tag / "rank_00000.safetensors"));
}

class ResumeOf : public ::testing::TestWithParam<const char*> {};

// A model whose state is fp32 only, and one with 16-bit weights beside their fp32 masters.
INSTANTIATE_TEST_SUITE_P(Models, ResumeOf, ::testing::Values("mlp", "gpt"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(ResumeOf, TenStepsAndTenInANewProcessAreTwentyInRowsAndWeights) {
  const TrainingFolder whole, parts;
  std::vector<std::string> model;
  if (GetParam() == std::string("gpt")) {
    model = {"--set", R"(capstan.model={"type": "gpt", "params": {"layers": 1, "d": 32, "heads": 2, "seq": 16}})",
             "--set", "bf16.enabled=true"};
  }
  const auto train = [&](const TrainingFolder& folder, std::vector<std::string> more) {
    more.insert(more.end(), {"--save", folder.path_of("ck")});
    more.insert(more.end(), model.begin(), model.end());
    return run_capstan(folder.train(more));
  };
  const auto twenty = train(whole, {"--steps", "20"});
  ASSERT_EQ(twenty.exit_code, 0) << twenty.text;
  ASSERT_EQ(train(parts, {"--steps", "10"}).exit_code, 0);
  const auto ten = train(parts, {"--steps", "20", "--resume", parts.path_of("ck")});
  ASSERT_EQ(ten.exit_code, 0) << ten.text;

  expect_same_run(whole / "ck", parts / "ck", "global_step20");
  const auto rows = files_in(whole / "csv");
  EXPECT_EQ(rows, files_in(parts / "csv"));
  ASSERT_TRUE(rows.contains("Train_Samples_train_loss.csv"));
  const auto& losses = rows.at("Train_Samples_train_loss.csv");
  EXPECT_EQ(std::count(losses.begin(), losses.end(), '\n'), 21) << losses;
}

TEST(Resume, GoingBackToAnEarlierCheckpointReplaysTheRun) {
  const TrainingFolder folder;
  ASSERT_EQ(run_capstan(folder.train({"--steps", "6", "--save", folder.path_of("ck"), "--save-every", "2"})).exit_code,
            0);
  fs::copy(folder / "ck", folder / "before", fs::copy_options::recursive);
  const auto rows = files_in(folder / "csv");

  const auto again = run_capstan(folder.train({"--steps", "6", "--save", folder.path_of("ck"), "--save-every", "2",
                                               "--resume", folder.path_of("ck:global_step2")}));

  ASSERT_EQ(again.exit_code, 0) << again.text;
  expect_same_run(folder / "before", folder / "ck", "global_step6");
  expect_same_run(folder / "before", folder / "ck", "global_step4");
  EXPECT_EQ(rows, files_in(folder / "csv"));
}

/// The checksums fit, because whoever changed the text has computed them anew.
TEST(Resume, NamesTheMemberOfAStateThatCannotBe) {
  const TrainingFolder folder;
  ASSERT_EQ(run_capstan(folder.train({"--steps", "2", "--save", folder.path_of("ck")})).exit_code, 0);
  CheckpointContents contents = read_checkpoint(folder / "ck", "global_step2");
  contents.state["client_state"]["data"] = Json::object();
  contents.state["client_state"]["data"]["fingerprint"] = "of other data";
  write_checkpoint(folder / "ck", "other", contents);
  contents.state["global_samples"] = -100000;
  write_checkpoint(folder / "ck", "bad", contents);

  const auto bad = run_capstan(folder.train({"--steps", "4", "--resume", folder.path_of("ck:bad")}));
  EXPECT_EQ(bad.exit_code, 1);
  EXPECT_THAT(bad.text, testing::HasSubstr("bad/state.json: global_samples: is -100000, and an integer from 0 to"));
  const auto other = run_capstan(folder.train({"--steps", "2", "--resume", folder.path_of("ck:other")}));
  EXPECT_EQ(other.exit_code, 0) << other.text;
  EXPECT_THAT(other.text, testing::HasSubstr("was trained on other data (? samples of ? tokens, now "));
}

/// Tells when names appear in a folder.
class FolderWatch {
 public:
  explicit FolderWatch(const fs::path& dir) : descriptor_(inotify_init1(IN_CLOEXEC)) {
    inotify_add_watch(descriptor_, dir.c_str(), IN_CREATE | IN_MOVED_TO);
  }
  ~FolderWatch() { close(descriptor_); }
  FolderWatch(const FolderWatch&) = delete;
  FolderWatch& operator=(const FolderWatch&) = delete;

  /// Waits for a name with `part` in it; names stand between line breaks. False when the time passes without.
  bool wait_for(const std::string& part, int timeout_ms) {
    while (names_.find(part) == std::string::npos) {
      pollfd ready{descriptor_, POLLIN, 0};
      if (poll(&ready, 1, timeout_ms) <= 0) return false;
      alignas(inotify_event) char buffer[4096];
      const ssize_t count = read(descriptor_, buffer, sizeof buffer);
      for (ssize_t at = 0; at < count;) {
        const auto* event = reinterpret_cast<const inotify_event*>(buffer + at);
        if (event->len > 0) names_ += std::string(event->name) + "\n";
        at += static_cast<ssize_t>(sizeof(inotify_event) + event->len);
      }
    }
    names_ = "\n";
    return true;
  }

 private:
  int descriptor_;
  std::string names_ = "\n";
};

/// Whether the folder looks as only the middle of a save leaves it.
bool killed_inside_a_save(const fs::path& dir) {
  for (const auto& entry : fs::directory_iterator(dir)) {
    if (entry.path().filename().string().starts_with('.')) return true;
  }
  return checkpoint_tags(dir).back() != latest_tag(dir);
}

TEST(Resume, ThirtyKillsTenOfThemInsideASaveLoseNothing) {
  const TrainingFolder folder;
  const fs::path dir = folder / "ck";
  fs::create_directory(dir);
  std::mt19937 random(20);
  int inside = 0;
  std::int64_t step = 0;
  for (int kills = 0; kills < 30; ++kills) {
    std::vector<std::string> more{"--steps", "1000000", "--save", dir.string(), "--save-every", "1", "--keep", "3"};
    if (kills > 0) more.insert(more.end(), {"--resume", dir.string()});
    FolderWatch watch(dir);
    Program program(capstan_words(folder.train(more)));
    // Every second one at the beginning of a save, the others at any time after the first save of the process.
    const bool aimed = kills % 2 == 0;
    const int saves = 1 + static_cast<int>(random() % 3);
    for (int i = 0; i < saves; ++i) ASSERT_TRUE(watch.wait_for("\nlatest\n", 60'000)) << program.wait().text;
    if (aimed) {
      ASSERT_TRUE(watch.wait_for(".partial-", 60'000));
    } else {
      watch.wait_for("no such name", static_cast<int>(random() % 40));
    }
    program.send(SIGKILL);
    ASSERT_EQ(program.wait().signal, SIGKILL);

    inside += killed_inside_a_save(dir) ? 1 : 0;
    const auto latest = latest_tag(dir);
    const auto contents = read_checkpoint(dir, latest);
    ASSERT_EQ(latest, "global_step" + std::to_string(contents.state.at("global_steps").as_integer()));
    ASSERT_GT(step_of(latest), step) << "a checkpoint that was there is lost";
    step = step_of(latest);
  }
  RecordProperty("killed_inside_a_save", inside);
  std::cout << inside << " of 30 kills fell inside a save; the last good checkpoint is of step " << step << "\n";
  EXPECT_GE(inside, 10);

  const std::string steps = std::to_string(step + 5);
  const auto rest = run_capstan(folder.train({"--steps", steps, "--save", dir.string(), "--resume", dir.string()}));
  ASSERT_EQ(rest.exit_code, 0) << rest.text;
  const TrainingFolder undisturbed;
  ASSERT_EQ(run_capstan(undisturbed.train({"--steps", steps, "--save", undisturbed.path_of("ck")})).exit_code, 0);
  expect_same_run(dir, undisturbed / "ck", "global_step" + steps);
  EXPECT_EQ(files_in(folder / "csv"), files_in(undisturbed / "csv"));
}

/// MoQ of a small gpt: a bit is lost every three updates, later where the loss is more curved.
constexpr const char* kFallingBits = R"({"train_batch_size": 2, "steps_per_print": 1,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}, "fp16": {"enabled": true, "loss_scale": 128},
    "compression_training": {"weight_quantization": {
      "shared_parameters": {"enabled": true, "rounding": "stochastic",
                            "fp16_mixed_quantize": {"enabled": true, "quantize_change_ratio": 0.3}},
      "different_groups": {"g": {"params": {"start_bits": 8, "target_bits": 4, "quantization_period": 3},
                                 "modules": ["attn", "mlp"]}}}},
    "quantize_training": {"eigenvalue": {"enabled": true, "layer_name": "blocks", "layer_num": 2, "max_iter": 2,
                                         "gas_boundary_resolution": 2}},
    "capstan": {"model": {"type": "gpt", "params": {"layers": 2, "d": 16, "heads": 2, "seq": 16}}, "run": {"seed": 7}}})";

TEST(Resume, KillsOfARunWhoseBitsFallChangeNoBit) {
  const TrainingFolder folder, undisturbed;
  for (const TrainingFolder* one : {&folder, &undisturbed}) one->write("moq.json", kFallingBits);
  const fs::path dir = folder / "ck";
  fs::create_directory(dir);
  for (int kills = 0; kills < 5; ++kills) {
    std::vector<std::string> more{"--steps", "1000000", "--save", dir.string(), "--save-every", "1", "--keep", "3"};
    if (kills > 0) more.insert(more.end(), {"--resume", dir.string()});
    FolderWatch watch(dir);
    Program program(capstan_words(folder.train(more, "moq.json")));
    for (int saves = 0; saves < 3; ++saves) ASSERT_TRUE(watch.wait_for("\nlatest\n", 60'000)) << program.wait().text;
    program.send(SIGKILL);
    ASSERT_EQ(program.wait().signal, SIGKILL);
  }
  const std::string steps = std::to_string(step_of(latest_tag(dir)) + 5);
  const auto rest =
      run_capstan(folder.train({"--steps", steps, "--save", dir.string(), "--resume", dir.string()}, "moq.json"));
  ASSERT_EQ(rest.exit_code, 0) << rest.text;
  const auto whole =
      run_capstan(undisturbed.train({"--steps", steps, "--save", undisturbed.path_of("ck")}, "moq.json"));
  ASSERT_EQ(whole.exit_code, 0) << whole.text;
  expect_same_run(dir, undisturbed / "ck", "global_step" + steps);
}

}  // namespace
}  // namespace capstan
