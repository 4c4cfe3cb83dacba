// capstan.run.sample_every: what a model writes while it is trained.

#include <gmock/gmock.h>

#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "core/text/json.hpp"
#include "tests/cli/programs.hpp"
#include "tests/support/byte_tokenizer.hpp"

namespace capstan::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

using Words = std::vector<std::string>;

/// A small model of bytes, and a text to repeat.
class Samples : public ::testing::Test {
 protected:
  Samples() {
    std::string text;
    for (int i = 0; i < 200; ++i) text += "abcdefgh";
    write_bytes(folder_ / "text.txt", text);
    write_config("config.json", 256, "");
  }

  void write_config(const char* name, int vocabulary, const std::string& more) const {
    write_bytes(folder_ / name,
                R"({"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}, "capstan": {"model":
        {"type": "decoder", "params": {"config": {"model_type": "gemma3_text", "vocab_size": )" +
                    std::to_string(vocabulary) +
                    R"(, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64, "sliding_window": 12,
         "sliding_window_pattern": 2, "query_pre_attn_scalar": 8}}}}, "csv_monitor": {"enabled": true})" +
                    more + "}");
  }
  ProcessResult run(const Words& words, bool succeeds = true) const {
    ProcessResult result = run_capstan(folder_, words);
    EXPECT_EQ(result.exit_code == 0, succeeds) << result.out << result.err;
    return result;
  }
  ProcessResult train(const Words& more, bool succeeds = true) const {
    Words words = {"train", "--config", "config.json", "--data", "text.txt"};
    words.insert(words.end(), more.begin(), more.end());
    return run(words, succeeds);
  }
  std::string refusal(const Words& more) const {
    Words words = {"--steps", "2"};
    words.insert(words.end(), more.begin(), more.end());
    return train(words, false).err;
  }
  /// The lines of the samples that a run has printed.
  static Words printed(const ProcessResult& result) {
    Words lines;
    std::istringstream in(result.out);
    for (std::string line; std::getline(in, line);) {
      if (line.find(", sample ") != std::string::npos) lines.push_back(line);
    }
    return lines;
  }
  std::vector<Json> kept(const std::string& job) const {
    std::vector<Json> texts;
    std::istringstream in(read_bytes(folder_ / job / "samples.jsonl"));
    for (std::string line; std::getline(in, line);) texts.push_back(Json::parse(line));
    return texts;
  }
  std::string losses(const std::string& job) const {
    return read_bytes(folder_ / job / "Train_Samples_train_loss.csv");
  }

  TemporaryFolder folder_;
};

Words operator+(Words a, const Words& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

TEST_F(Samples, ComeBeforeTheFirstStepEveryFewStepsAndAtTheEnd) {
  const ProcessResult result =
      train({"--steps", "40", "--save", "ckpt", "--set", "csv_monitor.job_name=job", "--sample-every", "16",
             "--sample-prompts", "cdefgh", "ab\"", "--set", "capstan.run.sample_tokens=10"});
  const Words lines = printed(result);
  ASSERT_EQ(lines.size(), 8u) << result.out;
  EXPECT_THAT(lines[0], testing::StartsWith(R"(step=0, sample 1: "cdefgh" -> ")"));
  EXPECT_THAT(lines[0], Not(HasSubstr("abcdefghab")));
  EXPECT_THAT(lines[1], testing::StartsWith(R"(step=0, sample 2: "ab\"" -> ")"));
  EXPECT_THAT(lines[2], testing::StartsWith("step=16, sample 1: "));
  EXPECT_THAT(lines[4], testing::StartsWith("step=32, sample 1: "));
  EXPECT_EQ(lines[6], R"(step=40, sample 1: "cdefgh" -> "abcdefghab")");
  EXPECT_THAT(result.out, HasSubstr("before the first step, every 16 steps and at the end, 10 tokens each"));

  // The command that continues texts, with the weights that were saved then.
  EXPECT_EQ(
      run({"generate", "--config", "config.json", "--checkpoint", "ckpt", "--prompt", "cdefgh", "--max-new", "10"}).out,
      "cdefghabcdefghab\n");
  const std::vector<Json> texts = kept("job");
  ASSERT_EQ(texts.size(), 8u);
  EXPECT_EQ(texts[6], Json::parse(R"({"step": 40, "samples": 320, "tag": "Train/Samples/generated_1",
                                      "prompt": "cdefgh", "text": "abcdefghab"})"));
  EXPECT_EQ(texts[1].at("prompt"), Json("ab\""));
  EXPECT_EQ(texts[1].at("step"), Json(0));
}

/// With the precision, stage and processes of each case, and a run that is resumed in the middle.
TEST_F(Samples, ChangeNoBitOfTheTraining) {
  struct Case {
    std::string name;
    Words launch, settings;
  };
  const std::vector<Case> cases = {
      {"alone", {}, {"--set", "gradient_accumulation_steps=2"}},
      {"stage2", {"launch", "-n", "2"}, {"--set", "zero_optimization.stage=2", "--set", "bf16.enabled=true"}},
      {"stage3", {"launch", "-n", "2"}, {"--set", "zero_optimization.stage=3"}}};
  const Words samples = {"--sample-every",
                         "2",
                         "--sample-prompts",
                         "cdefgh",
                         "--set",
                         "capstan.run.sample_tokens=5",
                         "--set",
                         "capstan.run.sample_temperature=1"};
  Words first_texts;
  for (const Case& one : cases) {
    const auto trained = [&](const std::string& job, const Words& more) {
      return run(
          one.launch +
          Words{"train", "--config", "config.json", "--data", "text.txt", "--set", "csv_monitor.job_name=" + job} +
          one.settings + more);
    };
    trained(one.name, {"--steps", "6"});
    const std::string with = one.name + "_with", save = one.name + "_ckpt";
    trained(with, samples + Words{"--steps", "4", "--save", save});
    const ProcessResult resumed = trained(with, samples + Words{"--steps", "6", "--save", save, "--resume", save});
    EXPECT_EQ(losses(with), losses(one.name)) << one.name;
    EXPECT_EQ(printed(resumed).size(), 1u) << resumed.out;
    std::vector<std::int64_t> steps;
    for (const Json& text : kept(with)) steps.push_back(text.at("step").as_integer());
    EXPECT_THAT(steps, ElementsAre(0, 2, 4, 6)) << one.name;
  }
}

TEST_F(Samples, AreTheSameAtEveryStageInOneProcessAndTwo) {
  const Words drawn = {"train",
                       "--config",
                       "config.json",
                       "--data",
                       "text.txt",
                       "--steps",
                       "1",
                       "--sample-every",
                       "1",
                       "--sample-prompts",
                       "cdefgh",
                       "--set",
                       "capstan.run.sample_temperature=2",
                       "--set",
                       "capstan.run.sample_top_k=50",
                       "--set",
                       "capstan.run.sample_top_p=0.9",
                       "--set",
                       "capstan.run.sample_tokens=8"};
  const Words alone = printed(run(drawn));
  ASSERT_EQ(alone.size(), 2u);
  const Words two = printed(run(Words{"launch", "-n", "2"} + drawn + Words{"--set", "zero_optimization.stage=3"}));
  ASSERT_EQ(two.size(), 2u) << "one rank prints for all";
  EXPECT_EQ(two[0], alone[0]);
  EXPECT_NE(printed(run(drawn + Words{"--seed", "99"}))[0], alone[0]);
}

TEST_F(Samples, TakeTextsByTheTokenizerAndIdsWithoutOne) {
  std::filesystem::create_directory(folder_ / "tok");
  write_bytes(folder_ / "tok/tokenizer.json", test::byte_tokenizer().dump());
  write_config("words.json", 300, "");
  write_bytes(folder_ / "prompts.jsonl", "{\"text\": \"abcd\"}\n{\"ids\": [97, 98]}\n");
  const Words words = {"train",
                       "--config",
                       "words.json",
                       "--data",
                       "text.txt",
                       "--steps",
                       "40",
                       "--sample-every",
                       "40",
                       "--set",
                       "capstan.run.sample_prompts_file=prompts.jsonl",
                       "--set",
                       "capstan.run.sample_tokens=3"};
  const Words by_tokenizer = printed(run(words + Words{"--set", "capstan.run.sample_tokenizer=tok"}));
  ASSERT_EQ(by_tokenizer.size(), 4u);
  EXPECT_EQ(by_tokenizer[2], R"(step=40, sample 1: "abcd" -> "efg")");
  EXPECT_EQ(by_tokenizer[3], R"(step=40, sample 2: "ab" -> "cde")");

  EXPECT_THAT(run(words, false).err,
              HasSubstr("capstan.run.sample_prompts: prompt 1: is text, the model comes without a tokenizer, and its "
                        "vocabulary of 300 is not that of bytes. Name a folder with capstan.run.sample_tokenizer, or "
                        "give the ids of the tokens."));
  write_bytes(folder_ / "prompts.jsonl", "{\"ids\": [97, 98]}\n");
  EXPECT_EQ(printed(run(words))[1], R"(step=40, sample 1: "97,98" -> "99,100,101")");
}

TEST_F(Samples, AreRefusedByASentenceThatNamesTheKey) {
  const Words every = {"--sample-every", "1"};
  EXPECT_THAT(refusal({"--set", "capstan.run.sample_every=-1", "--sample-prompts", "a"}),
              HasSubstr("capstan.run.sample_every: must be at least 0"));
  EXPECT_THAT(refusal(every),
              HasSubstr("capstan.run.sample_every: there is no prompt to continue. Give capstan.run.sample_prompts "
                        "(--sample-prompts TEXT), or a file with capstan.run.sample_prompts_file."));
  EXPECT_THAT(refusal(every + Words{"--sample-prompts", "a", ""}),
              HasSubstr("capstan.run.sample_prompts: prompt 2: is empty. A model continues at least one token."));
  EXPECT_THAT(refusal(every + Words{"--set", "capstan.run.sample_prompts_file=none.jsonl"}),
              HasSubstr("capstan.run.sample_prompts_file: 'none.jsonl' cannot be read."));
  EXPECT_THAT(refusal(every + Words{"--sample-prompts", "abc"}),
              HasSubstr("capstan.run.sample_prompts: prompt 1: 3 tokens and capstan.run.sample_tokens 64 take 66 "
                        "positions, and this model has 64. Shorten the prompt, or lower capstan.run.sample_tokens."));
  EXPECT_THAT(refusal(every + Words{"--sample-prompts", "a", "--set", "capstan.run.sample_tokenizer=nowhere"}),
              HasSubstr("nowhere"));
  EXPECT_THAT(refusal(every + Words{"--sample-prompts", "a", "--set", "capstan.run.sample_top_k=5"}),
              HasSubstr("capstan.run.sample_top_k: has no effect without a capstan.run.sample_temperature above 0."));
  EXPECT_THAT(
      refusal({"--sample-prompts", "a"}),
      HasSubstr("capstan.run.sample_prompts: has no effect without capstan.run.sample_every (--sample-every)."));
  EXPECT_THAT(
      refusal(every + Words{"--sample-prompts", "a", "--set", R"(sparse_attention={"mode": "fixed", "block": 16})"}),
      HasSubstr("capstan.run.sample_every: sparse_attention.mode sets blocks of a whole sequence, and a text is "
                "continued token by token. Leave one of them out."));
  write_bytes(folder_ / "mlp.json",
              R"({"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}})");
  EXPECT_THAT(run({"train", "--config", "mlp.json", "--model", "mlp", "--data", "text.txt", "--steps", "2",
                   "--sample-every", "1", "--sample-prompts", "a"},
                  false)
                  .err,
              HasSubstr("capstan.run.sample_every: capstan.model: model 'mlp' cannot continue a text: it has no "
                        "function decode."));
}

}  // namespace
}  // namespace capstan::cli
