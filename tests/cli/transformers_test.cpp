// Weights that go to Hugging Face's transformers, and come back.

#include <gmock/gmock.h>

#include <cmath>
#include <regex>

#include "tests/cli/programs.hpp"
#include "tests/support/readers.hpp"

namespace capstan::cli {
namespace {

using ::testing::HasSubstr;

const char* const kScript = CAPSTAN_TEST_SOURCE_DIR "/tests/cli/folder_loss.py";

/// Trains a GPT-2 of two blocks; "true" or "false": whether its head is tied.
class Transformers : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    // 64 samples of 64 tokens, so that no micro-batch is left over.
    write_bytes(folder_ / "text.txt", some_text().substr(0, 4097));
    write_config("config.json", GetParam());
    run({"train", "--config", "config.json", "--data", "text.txt", "--steps", "3", "--save", "ckpt"});
    run({"export", "--checkpoint", "ckpt", "--to", "hf", "--out", "gpt2"});
  }

  void write_config(const char* name, const std::string& tied, const char* heads = "4") const {
    write_bytes(folder_ / name, R"({"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
      "capstan": {"model": {"type": "gpt", "params": {"layers": 2, "d": 32, "seq": 64, "heads": )" +
                                    std::string(heads) + R"(, "tied_head": )" + tied + "}}}}");
  }
  ProcessResult run(const std::vector<std::string>& words, bool succeeds = true) const {
    ProcessResult result = run_capstan(folder_, words);
    EXPECT_EQ(result.exit_code == 0, succeeds) << result.err;
    return result;
  }
  double loss_of(const std::vector<std::string>& weights, const std::string& config = "config.json") const {
    std::vector<std::string> words = {"eval", "--config", config, "--data", "text.txt"};
    words.insert(words.end(), weights.begin(), weights.end());
    const std::string out = run(words).out;
    std::smatch found;
    if (std::regex_search(out, found, std::regex("eval_loss=([0-9.]+)"))) return std::stod(found[1]);
    ADD_FAILURE() << out;
    return 0;
  }

  TemporaryFolder folder_;
};

INSTANTIATE_TEST_SUITE_P(Heads, Transformers, ::testing::Values("false", "true"),
                         [](const auto& info) { return info.param == std::string("true") ? "Tied" : "Own"; });

TEST_P(Transformers, FoldersComeBackAsTheyWent) {
  EXPECT_EQ(loss_of({"--init-from", "gpt2"}), loss_of({"--checkpoint", "ckpt"}));
  run({"train", "--config", "config.json", "--data", "text.txt", "--steps", "1", "--init-from", "gpt2"});
}

TEST_P(Transformers, ComputeWhatWeDo) {
  const std::string python = test::reader_program("python", "CAPSTAN_TRANSFORMERS_PYTHON");
  if (python.empty()) GTEST_SKIP() << test::kNoReaders;
  const std::string file = (folder_ / "text.txt").string(), saved = (folder_ / "saved").string();
  const ProcessResult theirs =
      run_process({python, "-W", "ignore", kScript, (folder_ / "gpt2").string(), file, "64", saved});
  ASSERT_EQ(theirs.exit_code, 0) << theirs.err;
  EXPECT_NEAR(std::stod(theirs.out), loss_of({"--checkpoint", "ckpt"}), 2e-6);
  // What transformers itself writes is read as well.
  EXPECT_NEAR(std::stod(theirs.out), loss_of({"--init-from", "saved"}), 2e-6);
}

TEST_P(Transformers, FoldersOfAnotherShapeAreRefused) {
  write_config("other.json", GetParam(), "8");
  EXPECT_THAT(run({"eval", "--config", "other.json", "--data", "text.txt", "--init-from", "gpt2"}, false).err,
              HasSubstr("gpt2/config.json: n_head is 4, and that of model 'gpt' is 8."));
}

TEST(TransformersTied, WeightsStartAnUntiedHeadButNotTheOtherWayRound) {
  // The tied folder has no lm_head of its own.
  TemporaryFolder folder;
  write_bytes(folder / "text.txt", some_text().substr(0, 2000));
  const auto config = [](const std::string& tied) {
    return R"({"train_batch_size": 4, "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
      "capstan": {"model": {"type": "gpt", "params": {"layers": 1, "d": 16, "seq": 32, "heads": 2, "tied_head": )" +
           tied + "}}}}";
  };
  for (const std::string tied : {"true", "false"}) {
    write_bytes(folder / (tied + ".json"), config(tied));
    run_capstan(folder, {"train", "--config", tied + ".json", "--data", "text.txt", "--steps", "1", "--save", tied});
    run_capstan(folder, {"export", "--checkpoint", tied, "--to", "hf", "--out", tied + "_hf"});
  }
  const auto eval = [&](const std::string& model, const std::string& weights) {
    return run_capstan(folder,
                       {"eval", "--config", model + ".json", "--data", "text.txt", "--init-from", weights + "_hf"});
  };
  EXPECT_EQ(eval("false", "true").out, eval("true", "true").out);
  EXPECT_THAT(eval("true", "false").err, HasSubstr("tie_word_embeddings is false, and that of model 'gpt' is true."));
}

TEST(TransformersNames, OfAModelThatHasNoneAreMissedByName) {
  TemporaryFolder folder;
  write_bytes(folder / "text.txt", some_text().substr(0, 2000));
  write_bytes(folder / "config.json",
              R"({"train_batch_size": 4, "optimizer": {"type": "AdamW"}, "capstan": {"model": "mlp"}})");
  run_capstan(folder, {"train", "--config", "config.json", "--data", "text.txt", "--steps", "1", "--save", "ckpt"});
  const ProcessResult result = run_capstan(folder, {"export", "--checkpoint", "ckpt", "--to", "hf", "--out", "hf"});
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.err, HasSubstr("model 'mlp': does not say how its weights are called in transformers"));
}

}  // namespace
}  // namespace capstan::cli
