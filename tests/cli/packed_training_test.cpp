// Training on rows of several documents, from conversations to losses, by real processes.

#include <gmock/gmock.h>

#include <csignal>
#include <sstream>

#include "tests/cli/programs.hpp"
#include "tests/support/byte_tokenizer.hpp"
#include "tests/support/readers.hpp"

namespace capstan::cli {
namespace {

using ::testing::HasSubstr;

constexpr const char* kGpt =
    R"({"type": "gpt", "params": {"layers": 1, "d": 16, "heads": 2, "seq": 64, "vocab": 257}})";
constexpr const char* kLlama = R"({"type": "decoder", "params": {"config": {"model_type": "llama", "vocab_size": 257,
  "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
  "max_position_embeddings": 64}}})";

class PackedTraining : public ::testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directory(folder_ / "tok");
    write_bytes(folder_ / "tok/tokenizer.json", test::byte_tokenizer().dump());
    write_bytes(folder_ / "tok/chat_template.jinja",
                "{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}"
                "{% if add_generation_prompt %}a:{% endif %}");
    std::string rows;
    const std::string text = some_text();
    std::size_t at = 0;
    for (std::size_t i = 0; i < 160; ++i) {
      const std::size_t question = 2 + i * 7 % 11, answer = 3 + i * 5 % 17;
      rows += R"({"messages": [{"role": "user", "content": ")" + text.substr(at, question) +
              R"("}, {"role": "assistant", "content": ")" + text.substr(at + question, answer) + "\"}]}\n";
      at += question + answer;
    }
    write_bytes(folder_ / "chats.jsonl", rows);
    run({"data", "chat", "chats.jsonl", "--tokenizer", "tok", "--out", "chats.idx", "--pack", "48"});
  }

  ProcessResult run(const std::vector<std::string>& words) const {
    ProcessResult result = run_capstan(folder_, words);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result;
  }
  void write_config(const std::string& name, const std::string& model, const std::string& sections = "") const {
    write_bytes(folder_ / (name + ".json"),
                R"({"train_batch_size": 4, "train_micro_batch_size_per_gpu": 1, "steps_per_print": 1, )" + sections +
                    R"("optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
      "csv_monitor": {"enabled": true, "output_path": "metrics", "job_name": ")" +
                    name + R"("}, "capstan": {"model": )" + model +
                    R"(, "data": {"path": "chats.idx", "format": "indexed"},
      "run": {"seed": 3}}})");
  }
  std::vector<std::string> train(const std::string& config, int processes, const std::vector<std::string>& more) const {
    std::vector<std::string> words = {"train", "--config", config + ".json", "--no-progress"};
    if (processes > 1) words.insert(words.begin(), {"launch", "-n", std::to_string(processes)});
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  std::vector<double> losses(const std::string& config) const {
    std::istringstream in(read_bytes(folder_ / ("metrics/" + config + "/Train_Samples_train_loss.csv")));
    std::vector<double> values;
    std::string line;
    for (std::getline(in, line); std::getline(in, line);) values.push_back(std::stod(line.substr(line.find(',') + 1)));
    return values;
  }
  void expect_losses(const std::vector<double>& found, const std::vector<double>& wanted) const {
    ASSERT_EQ(found.size(), wanted.size());
    for (std::size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], wanted[i], 2e-5 * wanted[i]) << "step " << i;
  }
  /// The weights after three steps of two processes, a micro-batch of two rows each.
  std::string exported(const std::string& config, const std::string& stage,
                       const std::vector<std::string>& more) const {
    const std::string name = "out" + std::to_string(++exports_);
    std::vector<std::string> words = {"--steps", "3",
                                      "--save",  name,
                                      "--set",   "train_micro_batch_size_per_gpu=2",
                                      "--set",   "zero_optimization.stage=" + stage};
    words.insert(words.end(), more.begin(), more.end());
    run(train(config, 2, words));
    run({"export", "--checkpoint", name, "--to", "hf", "--out", name + "_hf"});
    return read_bytes(folder_ / (name + "_hf/model.safetensors"));
  }

  TemporaryFolder folder_;
  mutable int exports_ = 0;
};

TEST_F(PackedTraining, TakesTheRowsInOneOrderWhateverTheProcessesAndMicroBatches) {
  write_config("one", kGpt);
  run(train("one", 1, {"--steps", "8"}));
  const std::vector<double> wanted = losses("one");
  ASSERT_EQ(wanted.size(), 8u);
  EXPECT_LT(wanted.back(), wanted.front());
  for (const int processes : {2, 4}) {
    SCOPED_TRACE(processes);
    const std::string name = "of" + std::to_string(processes);
    write_config(name, kGpt);
    run(train(name, processes, {"--steps", "8"}));
    expect_losses(losses(name), wanted);
  }
}

TEST_F(PackedTraining, GoesOnWithTheRowsThatComeNextAfterAKillOnAnotherNumberOfProcesses) {
  write_config("killed", kGpt);
  std::vector<std::string> words = train("killed", 1, {"--steps", "1000000", "--save", "ck", "--save-every", "1"});
  words.insert(words.begin(), kCapstan);
  Process process(words, {.environment = {}, .folder = folder_.path()});
  ASSERT_TRUE(process.wait_for_output("saved ck/global_step3\n"));
  process.send(SIGKILL);
  EXPECT_EQ(process.wait().signal, SIGKILL);
  const std::string latest = read_bytes(folder_ / "ck/latest");
  const std::string steps = std::to_string(std::stoi(latest.substr(std::string("global_step").size())) + 4);
  run(train("killed", 2, {"--steps", steps, "--save", "ck", "--resume", "ck"}));

  write_config("straight", kGpt);
  run(train("straight", 1, {"--steps", steps}));

  expect_losses(losses("killed"), losses("straight"));
}

TEST_F(PackedTraining, GivesEqualWeightsAtEveryStageWithRecomputationAndInBf16) {
  for (const char* precision : {"", R"("bf16": {"enabled": true}, )"}) {
    write_config(
        "llama", kLlama,
        std::string(precision) + R"("zero_optimization": {"stage": 0, "stage3_param_persistence_threshold": 0}, )");
    const std::string whole = exported("llama", "0", {});
    EXPECT_TRUE(exported("llama", "3", {}) == whole) << precision;
    EXPECT_TRUE(exported("llama", "3", {"--set", "capstan.recompute={}"}) == whole) << precision;
  }
}

TEST_F(PackedTraining, IsRefusedForModelsAndLayoutsThatWouldMixDocuments) {
  const auto refused = [&](const std::vector<std::string>& more) {
    const ProcessResult result = run_capstan(folder_, train("gpt", 1, more));
    EXPECT_EQ(result.exit_code, 1);
    return result.err;
  };
  write_config("gpt", kGpt);
  EXPECT_THAT(
      refused({"--steps", "1", "--set", R"(capstan.model={"type": "mlp", "params": {"seq": 64, "vocab": 257}})"}),
      HasSubstr("data: 'chats.idx' has rows of several documents, which 'document_ids' tells apart, and model "
                "'mlp' does not say that it reads 'document_ids': tokens would see other documents of their rows."));
  EXPECT_THAT(
      refused({"--steps", "1", "--set", R"(sparse_attention={"mode": "dense", "block": 16})"}),
      HasSubstr("sparse_attention.mode: 'chats.idx' has rows of several documents, each of which is attended to by "
                "itself, and a layout is of whole rows."));
  EXPECT_THAT(refused({"--steps", "1", "--seq", "32"}),
              HasSubstr("data: 'chats.idx' is packed into rows of 48 tokens, and a sample has 32."));
}

TEST_F(PackedTraining, GivesTheLossesOfTransformersOnTheSameRows) {
  const std::string python = test::reader_program("python", "CAPSTAN_TRANSFORMERS_PYTHON");
  if (python.empty()) GTEST_SKIP() << test::kNoReaders;
  const ProcessResult result =
      run_process({python, "-W", "ignore", CAPSTAN_TEST_SOURCE_DIR "/tests/cli/packed_losses.py", kCapstan,
                   folder_.path().string()},
                  {.environment = {"OMP_NUM_THREADS=1"}, .folder = {}});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("20 losses are equal"));
}

}  // namespace
}  // namespace capstan::cli
