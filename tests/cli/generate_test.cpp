// capstan generate: prompts that a trained decoder continues.

#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "core/text/json.hpp"
#include "tests/cli/programs.hpp"
#include "tests/support/byte_tokenizer.hpp"
#include "tests/support/readers.hpp"

namespace capstan::cli {
namespace {

using ::testing::HasSubstr;

/// A small model that has learned to repeat a text.
class Generate : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<TemporaryFolder>();
    std::string text;
    for (int i = 0; i < 200; ++i) text += "abcdefgh";
    write_bytes(*folder_ / "text.txt", text);
    write_bytes(*folder_ / "config.json", config(256));
    run({"train", "--config", "config.json", "--data", "text.txt", "--seq", "64", "--steps", "40", "--save", "ckpt"});
  }
  static void TearDownTestSuite() { folder_.reset(); }

  static std::string config(int vocabulary) {
    return R"({"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
      "capstan": {"model": {"type": "decoder", "params": {"config": {"model_type": "gemma3_text", "vocab_size": )" +
           std::to_string(vocabulary) + R"(, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 80,
        "sliding_window": 12, "sliding_window_pattern": 2, "query_pre_attn_scalar": 8}}}}})";
  }
  static ProcessResult run(const std::vector<std::string>& words, bool succeeds = true) {
    ProcessResult result = run_capstan(*folder_, words);
    EXPECT_EQ(result.exit_code == 0, succeeds) << result.err;
    return result;
  }
  static std::vector<std::string> generate(const std::vector<std::string>& more) {
    std::vector<std::string> words = {"generate", "--config", "config.json", "--checkpoint", "ckpt"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  static std::string out_of(const std::vector<std::string>& more) { return run(generate(more)).out; }
  static std::string error_of(const std::vector<std::string>& more) { return run(generate(more), false).err; }

  static inline std::unique_ptr<TemporaryFolder> folder_;
};

TEST_F(Generate, ContinuesATextThatTheModelHasLearned) {
  EXPECT_EQ(out_of({"--prompt", "cdefgh", "--max-new", "20"}), "cdefghabcdefghabcdefghabcd\n");
}

TEST_F(Generate, TakesIdsAndStopsBehindOne) {
  EXPECT_EQ(out_of({"--ids", "97,98,99,100", "--max-new", "6"}), "101,102,103,104,97,98\n");
  EXPECT_EQ(out_of({"--ids", "97,98,99,100", "--max-new", "6", "--stop", "1,104"}), "101,102,103,104\n");
  EXPECT_EQ(
      out_of({"--ids", "97,98,99,100", "--max-new", "6", "--set", "capstan.model.params.config.eos_token_id=[103]"}),
      "101,102,103\n");
}

TEST_F(Generate, AnswersAFileOfPromptsByLines) {
  write_bytes(*folder_ / "prompts.jsonl", "{\"text\": \"abcd\"}\n\n{\"ids\": [100, 101, 102, 103]}\n");
  const std::string out = out_of({"--prompts", "prompts.jsonl", "--max-new", "3"});
  const std::size_t end = out.find('\n');
  EXPECT_EQ(Json::parse(out.substr(0, end)), Json::parse(R"({"ids": [101, 102, 103], "text": "efg"})"));
  EXPECT_EQ(Json::parse(out.substr(end + 1)), Json::parse(R"({"ids": [104, 97, 98]})"));
}

TEST_F(Generate, GivesPromptsOfABatchTheTokensThatEachHasAlone) {
  std::string prompts;
  for (const char* ids : {"97,98", "99,100,101,102,103,104,97,98,99,100,101,102,103,104,97", "200", "5,17,31,250,8",
                          "104,97,98,99,100,101"}) {
    prompts += std::string("{\"ids\": [") + ids + "]}\n";
  }
  write_bytes(*folder_ / "many.jsonl", prompts);
  const auto answers = [&](const char* batch, std::vector<std::string> more) {
    std::vector<std::string> words = {"--prompts", "many.jsonl", "--max-new", "24", "--batch", batch};
    words.insert(words.end(), more.begin(), more.end());
    return out_of(words);
  };
  // Greedy, with rows that end early, and drawn.
  for (const std::vector<std::string>& how : std::vector<std::vector<std::string>>{
           {}, {"--stop", "104,98"}, {"--temperature", "2.5", "--top-k", "40", "--seed", "3"}}) {
    const std::string alone = answers("1", how);
    EXPECT_EQ(std::count(alone.begin(), alone.end(), '\n'), 5);
    EXPECT_EQ(answers("2", how), alone);
    EXPECT_EQ(answers("64", how), alone);
  }
}

TEST_F(Generate, TakesTextsAndMessagesByTheTokenizer) {
  std::filesystem::create_directory(*folder_ / "tok");
  write_bytes(*folder_ / "tok/tokenizer.json", test::byte_tokenizer().dump());
  write_bytes(*folder_ / "tok/tokenizer_config.json",
              R"({"eos_token": "h", "chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}"})");
  EXPECT_EQ(out_of({"--prompt", "cdefgh", "--max-new", "20", "--tokenizer", "tok"}), "cdefghabcdefghabcdefghabcd\n");
  write_bytes(*folder_ / "texts.jsonl", "{\"text\": \"abcd\"}\n");
  EXPECT_EQ(out_of({"--prompts", "texts.jsonl", "--max-new", "3", "--tokenizer", "tok"}),
            "{\"ids\":[101,102,103],\"text\":\"efg\"}\n");
  // The answer alone, until the token that ends a turn.
  EXPECT_EQ(out_of({"--chat", "--prompt", "abcd", "--max-new", "20", "--tokenizer", "tok"}), "efgh\n");
  EXPECT_THAT(error_of({"--chat", "--prompt", "abcd"}),
              HasSubstr("--chat: the model comes without a tokenizer. Name a folder or GGUF file with --tokenizer."));
  write_bytes(*folder_ / "tok/tokenizer_config.json", "{}");
  EXPECT_THAT(error_of({"--chat", "--prompt", "a", "--tokenizer", "tok"}), HasSubstr("'tok' has no chat template"));
  EXPECT_THAT(error_of({"--prompt", "a", "--tokenizer", "nowhere"}), HasSubstr("nowhere"));
}

TEST_F(Generate, AnswersTheMessagesOfAConversation) {
  std::filesystem::create_directory(*folder_ / "talk");
  write_bytes(*folder_ / "talk/tokenizer.json", test::byte_tokenizer().dump());
  write_bytes(*folder_ / "talk/tokenizer_config.json", R"({"eos_token": "h"})");
  write_bytes(*folder_ / "talk/chat_template.jinja", "{% for m in messages %}{{ m.content }}{% endfor %}");
  write_bytes(*folder_ / "messages", "abcd\n\nab\n");
  const std::string command = "'" CAPSTAN_TEST_BUILD_DIR
                              "/bin/capstan' generate --config config.json --checkpoint ckpt --chat --tokenizer talk "
                              "--max-new 20 < messages";
  const ProcessResult result = run_process({"/bin/sh", "-c", "cd '" + folder_->path().string() + "' && " + command});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  // The second answer continues the whole conversation, abcdefghab.
  EXPECT_EQ(result.out, "efgh\ncdefgh\n");
}

TEST_F(Generate, DrawsTheSameTokensInEveryRunAndWorld) {
  const std::vector<std::string> drawn = {"--ids", "97,98", "--max-new", "30", "--temperature", "3", "--top-p", "0.9"};
  const auto with_seed = [&](const char* seed) {
    std::vector<std::string> words = drawn;
    words.insert(words.end(), {"--seed", seed});
    return words;
  };
  const std::string first = out_of(with_seed("5"));
  EXPECT_EQ(out_of(with_seed("5")), first);
  EXPECT_NE(out_of(with_seed("6")), first);
  EXPECT_NE(out_of({"--ids", "97,98", "--max-new", "30"}), first);
  std::vector<std::string> launched = generate(with_seed("5"));
  launched.insert(launched.begin(), {"launch", "-n", "2"});
  launched.insert(launched.end(), {"--set", "zero_optimization.stage=3"});
  EXPECT_EQ(run(launched).out, first);
}

TEST_F(Generate, GivesTheGreedyTokensOfTransformers) {
  const std::string python = test::reader_program("python", "CAPSTAN_TRANSFORMERS_PYTHON");
  if (python.empty()) GTEST_SKIP() << test::kNoReaders;
  run({"export", "--checkpoint", "ckpt", "--to", "hf", "--out", "folder"});
  const ProcessResult theirs =
      run_process({python, "-W", "ignore", CAPSTAN_TEST_SOURCE_DIR "/tests/cli/generated_tokens.py",
                   (*folder_ / "folder").string(), "5,200,97,31", "64"});
  ASSERT_EQ(theirs.exit_code, 0) << theirs.err;
  EXPECT_EQ(
      run({"generate", "--config", "config.json", "--init-from", "folder", "--ids", "5,200,97,31", "--max-new", "64"})
          .out,
      theirs.out);
}

TEST_F(Generate, NamesWhatIsWrong) {
  EXPECT_THAT(error_of({}),
              HasSubstr("no prompt is given. Give --prompt TEXT, --ids ID,ID,..., --prompts FILE or --chat."));
  EXPECT_THAT(run({"generate", "--config", "config.json", "--prompt", "a"}, false).err,
              HasSubstr("no weights are named. Give --checkpoint DIR[:TAG], --init-from PATH or --model hf:FOLDER."));
  EXPECT_THAT(error_of({"--ids", "97,x"}),
              HasSubstr("--ids: must be token ids with commas between, as 1,450,4996, got '97,x'."));
  EXPECT_THAT(error_of({"--ids", "97,256"}),
              HasSubstr("prompt 1: holds id 256, this model's vocabulary is 0 to 255. Tokens of another model's "
                        "tokenizer do not fit."));
  EXPECT_THAT(error_of({"--prompt", "a", "--max-new", "81"}),
              HasSubstr("prompt 1: 1 tokens and --max-new 81 take 81 positions, and this model has 80. Shorten the "
                        "prompt, or lower --max-new."));
  EXPECT_THAT(error_of({"--prompts", "p.jsonl", "--batch", "65"}), HasSubstr("--batch: must be at most 64."));
  EXPECT_THAT(error_of({"--prompt", "a", "--batch", "2"}), HasSubstr("--batch requires --prompts"));
  EXPECT_THAT(error_of({"--prompt", "a", "--temperature", "1", "--top-p", "1.5"}),
              HasSubstr("--top-p: must be above 0 and at most 1."));
  EXPECT_THAT(error_of({"--prompt", "a", "--temperature", "-1"}), HasSubstr("--temperature: must be 0 or more."));
  EXPECT_THAT(error_of({"--prompt", "a", "--temperature", "1", "--top-p", "0"}),
              HasSubstr("--top-p: must be above 0 and at most 1."));
  EXPECT_THAT(error_of({"--prompt", "a", "--temperature", "1", "--top-k", "-2"}),
              HasSubstr("--top-k: must be 0, for all tokens, or more."));
  EXPECT_THAT(error_of({"--prompt", "a", "--top-k", "5"}),
              HasSubstr("--top-k and --top-p choose what is drawn from, and --temperature 0 draws nothing."));
  run({"export", "--checkpoint", "ckpt", "--to", "safetensors", "--out", "model.safetensors"});
  EXPECT_THAT(
      run({"generate", "--config", "config.json", "--init-from", "model.safetensors", "--prompt", "ab", "--max-new",
           "3", "--set", "capstan.model.params.config.query_pre_attn_scalar=1e-90"},
          false)
          .err,
      HasSubstr("the logits of token 2 are not numbers. The weights are not, or overflow in the precision of the "
                "configuration."));
  EXPECT_THAT(error_of({"--prompts", "none.jsonl"}), HasSubstr("--prompts: 'none.jsonl' cannot be read."));
  write_bytes(*folder_ / "bad.jsonl", "{\"ids\": [1]}\n{\"prompt\": \"a\"}\n");
  EXPECT_THAT(error_of({"--prompts", "bad.jsonl"}),
              HasSubstr(R"(bad.jsonl:2: must be {"text": "..."} or {"ids": [1, 2]}, got {"prompt": "a"}.)"));
  write_bytes(*folder_ / "cut.jsonl", "{\"ids\": [1]}\n{\"ids\": [2, 3]}\n{\"ids\": [4\n");
  EXPECT_THAT(error_of({"--prompts", "cut.jsonl"}), HasSubstr("cut.jsonl:3: "));
  write_bytes(*folder_ / "wide.jsonl", "{\"ids\": [1]}\n{\"ids\": [300]}\n");
  EXPECT_THAT(error_of({"--prompts", "wide.jsonl"}), HasSubstr("prompt 2: holds id 300, this model's vocabulary is"));
  write_bytes(*folder_ / "empty.jsonl", "{\"text\": \"\"}\n");
  EXPECT_THAT(error_of({"--prompts", "empty.jsonl"}),
              HasSubstr("prompt 1: is empty. A model continues at least one token."));
  write_bytes(*folder_ / "words.json", config(300));
  run({"train", "--config", "words.json", "--data", "text.txt", "--steps", "1", "--save", "words"});
  EXPECT_THAT(
      run({"generate", "--config", "words.json", "--checkpoint", "words", "--prompt", "a"}, false).err,
      HasSubstr("prompt 1: is text, the model comes without a tokenizer, and its vocabulary of 300 is not that of "
                "bytes. Name a folder with --tokenizer, or give the ids of the tokens."));
  EXPECT_THAT(
      error_of({"--prompt", "a", "--set", R"(sparse_attention={"mode": "fixed", "block": 16})"}),
      HasSubstr("sparse_attention.mode: its blocks are those of a whole sequence, and a text is continued token by "
                "token. Leave sparse attention out of the configuration for this command."));
  EXPECT_THAT(run({"generate", "--model", "mlp", "--checkpoint", "ckpt", "--prompt", "a"}, false).err,
              HasSubstr("model 'mlp' cannot continue a text: it has no function decode."));
}

}  // namespace
}  // namespace capstan::cli
