// Decoders of transformers, trained from the command line.

#include <gmock/gmock.h>

#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "tests/cli/programs.hpp"
#include "tests/support/readers.hpp"

namespace capstan::cli {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

class DecoderTraining : public ::testing::Test {
 protected:
  void SetUp() override { write_bytes(folder_ / "text.txt", some_text().substr(0, 2049)); }

  /// A configuration of the model, with `sections` before its section capstan.
  void write_config(const std::string& name, const std::string& model, const std::string& sections = "") const {
    write_bytes(folder_ / name, R"({"train_batch_size": 8, "gradient_clipping": 1.0, )" + sections +
                                    R"("optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
      "capstan": {"model": {"type": "decoder", "params": {"config": {"vocab_size": 256, "hidden_size": 32,
        "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 8, "max_position_embeddings": 32, )" +
                                    model + "}}}}}");
  }
  ProcessResult run(const std::vector<std::string>& words) const {
    ProcessResult result = run_capstan(folder_, words);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result;
  }
  /// Trains three steps and exports; the bytes of the exported weights.
  std::string trained(const std::string& config, int processes = 1, const std::vector<std::string>& more = {}) const {
    const std::string name = "run" + std::to_string(++runs_);
    std::vector<std::string> words = {"train",   "--config", config,   "--data", "text.txt",
                                      "--steps", "3",        "--save", name};
    if (processes > 1) words.insert(words.begin(), {"launch", "-n", std::to_string(processes)});
    words.insert(words.end(), more.begin(), more.end());
    run(words);
    run({"export", "--checkpoint", name, "--to", "hf", "--out", name + "_hf"});
    return read_bytes(folder_ / (name + "_hf/model.safetensors"));
  }
  void expect_one_export(const std::string& config) const {
    for (const int processes : {1, 2}) {
      std::vector<std::string> exports;
      for (const char* stage : {"0", "1", "2", "3"}) {
        exports.push_back(trained(config, processes, {"--set", std::string("zero_optimization.stage=") + stage}));
      }
      EXPECT_THAT(exports, Each(exports.front())) << processes << " processes";
    }
  }
  double eval_loss(const std::string& config, const std::vector<std::string>& weights) const {
    std::vector<std::string> words = {"eval", "--config", config, "--data", "text.txt"};
    words.insert(words.end(), weights.begin(), weights.end());
    const std::string out = run(words).out;
    std::smatch found;
    if (std::regex_search(out, found, std::regex("eval_loss=([0-9.]+)"))) return std::stod(found[1]);
    ADD_FAILURE() << out;
    return 0;
  }

  TemporaryFolder folder_;
  mutable int runs_ = 0;
};

// Thresholds of 0 part every weight at stage 3.
constexpr const char* kParted = R"("zero_optimization": {"stage": 0, "stage3_param_persistence_threshold": 0}, )";

TEST_F(DecoderTraining, GivesEqualWeightsOfLlamaAtEveryStage) {
  write_config("llama.json", R"("model_type": "llama")", kParted);
  expect_one_export("llama.json");
}

TEST_F(DecoderTraining, GivesEqualWeightsOfQwen2InBf16AtEveryStage) {
  write_config("qwen2.json", R"("model_type": "qwen2", "tie_word_embeddings": true)",
               std::string(kParted) + R"("bf16": {"enabled": true}, )");
  expect_one_export("qwen2.json");
}

TEST_F(DecoderTraining, RecomputesItsLayersBitForBit) {
  write_config("gemma3.json", R"("model_type": "gemma3_text", "sliding_window": 9, "sliding_window_pattern": 2)");
  EXPECT_EQ(trained("gemma3.json"), trained("gemma3.json", 1, {"--set", "capstan.recompute={}"}));
}

TEST_F(DecoderTraining, ExportsWhatTransformersOpensAndReadsWhatItWrites) {
  const std::string python = test::reader_program("python", "CAPSTAN_TRANSFORMERS_PYTHON");
  if (python.empty()) GTEST_SKIP() << test::kNoReaders;
  // Rotary settings in the dialect of transformers 4; transformers 5 writes the other one.
  write_config("llama.json", R"("model_type": "llama", "dtype": "bfloat16", "rope_theta": 500.0, "rope_scaling": {
      "type": "linear", "factor": 2.0}, "unknown_key": 7)");
  trained("llama.json");
  EXPECT_THAT(
      read_bytes(folder_ / "run1_hf/config.json"),
      AllOf(HasSubstr("\"unknown_key\": 7"), HasSubstr("\"dtype\": \"float32\""), Not(HasSubstr("torch_dtype"))));

  const ProcessResult theirs = run_process({python, "-W", "ignore", CAPSTAN_TEST_SOURCE_DIR "/tests/cli/folder_loss.py",
                                            (folder_ / "run1_hf").string(), (folder_ / "text.txt").string(), "32",
                                            (folder_ / "saved").string()});
  ASSERT_EQ(theirs.exit_code, 0) << theirs.err;
  EXPECT_NEAR(std::stod(theirs.out), eval_loss("llama.json", {"--checkpoint", "run1"}), 2e-6);
  EXPECT_EQ(eval_loss("llama.json", {"--init-from", "saved"}), eval_loss("llama.json", {"--checkpoint", "run1"}));
}

TEST_F(DecoderTraining, EvaluatesTheModelOfTheCheckpoint) {
  write_config("llama.json", R"("model_type": "llama", "rms_norm_eps": 1e-6)");
  trained("llama.json");
  write_bytes(folder_ / "plain.json", R"({"train_batch_size": 1})");
  EXPECT_EQ(eval_loss("plain.json", {"--checkpoint", "run1"}), eval_loss("llama.json", {"--checkpoint", "run1"}));

  // A single key of the command line changes the model of the checkpoint, which then is another one.
  const ProcessResult changed =
      run_capstan(folder_, {"eval", "--config", "plain.json", "--data", "text.txt", "--checkpoint", "run1", "--set",
                            "capstan.model.params.config.rms_norm_eps=0.5"});
  EXPECT_EQ(changed.exit_code, 1);
  EXPECT_THAT(changed.err, HasSubstr("has 1e-06 for rms_norm_eps, and now it has 0.5."));

  // The default configuration names another model, which the user has not asked for.
  const std::vector<std::string> words = {"generate", "--checkpoint", "run1", "--prompt", "The", "--max-new", "8"};
  std::vector<std::string> named = words;
  named.insert(named.end(), {"--config", "llama.json"});
  EXPECT_EQ(run(words).out, run(named).out);
}

TEST_F(DecoderTraining, RefusesAFolderOfAnotherShape) {
  write_config("llama.json", R"("model_type": "llama", "rope_theta": 500.0)");
  write_config("other.json", R"("model_type": "llama", "rope_theta": 10000.0)");
  trained("llama.json");

  const ProcessResult refused =
      run_capstan(folder_, {"eval", "--config", "other.json", "--data", "text.txt", "--init-from", "run1_hf"});
  EXPECT_NE(refused.exit_code, 0);
  EXPECT_THAT(refused.err, HasSubstr("rope_theta is 500.0, and that of model 'decoder' is 10000.0."));
}

}  // namespace
}  // namespace capstan::cli
