// Models that others have trained: --model hf:FOLDER and FILE.gguf.

#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>
#include <regex>
#include <sstream>

#include "tests/cli/programs.hpp"
#include "tests/support/byte_tokenizer.hpp"
#include "tests/support/readers.hpp"

namespace capstan::cli {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const char* const kPython = CAPSTAN_TEST_SOURCE_DIR "/tests/cli/pretrained_models.py";

/// A folder as transformers 4 wrote it, with what Capstan has no use for.
const char* const kConfigJson = R"({
  "architectures": ["LlamaForCausalLM"],
  "hidden_size": 32,
  "intermediate_size": 64,
  "max_position_embeddings": 64,
  "model_type": "llama",
  "num_attention_heads": 4,
  "num_hidden_layers": 2,
  "num_key_value_heads": 2,
  "rms_norm_eps": 1e-05,
  "rope_theta": 10000.0,
  "somebodys_own": {"a": [1, 2.5, null]},
  "torch_dtype": "bfloat16",
  "vocab_size": 256
})";

class PretrainedModels : public ::testing::Test {
 protected:
  void SetUp() override {
    write_bytes(folder_ / "text.txt", some_text().substr(0, 2049));
    write_config("config.json", "0.01");
  }

  void write_config(const char* name, const std::string& rate, const std::string& more = "") const {
    write_bytes(
        folder_ / name, R"({"train_batch_size": 8, "gradient_clipping": 1.0, "optimizer": {"type": "AdamW", "params":
      {"lr": )" + rate + "}}" +
                            more + "}");
  }
  ProcessResult run(const std::vector<std::string>& words, int code = 0) const {
    ProcessResult result = run_capstan(folder_, words);
    EXPECT_EQ(result.exit_code, code) << result.out << result.err;
    return result;
  }
  ProcessResult train(const std::vector<std::string>& more, int code = 0) const {
    std::vector<std::string> words = {"train", "--config", "config.json", "--data", "text.txt", "--seq", "32"};
    words.insert(words.end(), more.begin(), more.end());
    return run(words, code);
  }
  double loss_of(const std::vector<std::string>& more) const {
    std::vector<std::string> words = {"eval", "--config", "config.json", "--data", "text.txt", "--seq", "32"};
    words.insert(words.end(), more.begin(), more.end());
    const std::string out = run(words).out;
    std::smatch found;
    if (std::regex_search(out, found, std::regex("eval_loss=([0-9.]+)"))) return std::stod(found[1]);
    ADD_FAILURE() << out;
    return 0;
  }
  /// Writes the folder llama, whose weights a short training has made.
  void make_folder() const {
    fs::create_directory(folder_ / "shape");
    write_bytes(folder_ / "shape/config.json", kConfigJson);
    train({"--model", "hf:shape", "--from-scratch", "--steps", "1", "--save", "made"});
    run({"export", "--checkpoint", "made", "--to", "hf", "--out", "llama"});
    write_bytes(folder_ / "llama/config.json", kConfigJson);
    write_bytes(folder_ / "llama/tokenizer.json", R"({"model": {}})");
    write_bytes(folder_ / "llama/chat_template.jinja", "{{ messages }}\n");
    write_bytes(folder_ / "llama/modeling_net.py", "raise SystemExit('never run')\n");
  }
  std::string bytes(const std::string& name) const { return read_bytes(folder_ / name); }

  TemporaryFolder folder_;
};

TEST_F(PretrainedModels, TrainFromTheirFolderResumeWithoutItAndComeBackWhole) {
  make_folder();
  const double start = loss_of({"--model", "hf:llama"});
  EXPECT_EQ(start, loss_of({"--checkpoint", "made"}));
  const ProcessResult result = train({"--model", "hf:llama", "--steps", "2", "--save", "ckpt"});
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("decoder (config of llama)"), HasSubstr("started from the weights of llama")));

  fs::rename(folder_ / "llama", folder_ / "gone");
  EXPECT_THAT(train({"--resume", "ckpt", "--steps", "3", "--save", "ckpt"}).out,
              HasSubstr("resumed from ckpt/global_step2"));
  EXPECT_LT(loss_of({"--checkpoint", "ckpt"}), start);
  run({"export", "--checkpoint", "ckpt", "--to", "hf", "--dtype", "bfloat16", "--out", "back"});
  EXPECT_EQ(bytes("back/tokenizer.json"), bytes("gone/tokenizer.json"));
  EXPECT_EQ(bytes("back/chat_template.jinja"), bytes("gone/chat_template.jinja"));
  EXPECT_FALSE(fs::exists(folder_ / "back/modeling_net.py"));
  // The whole object in its own dialect, with the type of the weights.
  const auto without_blanks = [](std::string text) {
    std::erase_if(text, [](char c) { return c == ' ' || c == '\n'; });
    return text;
  };
  EXPECT_EQ(without_blanks(bytes("back/config.json")), without_blanks(kConfigJson));
}

TEST_F(PretrainedModels, AreNotResumedAsAnotherModel) {
  make_folder();
  train({"--model", "hf:llama", "--steps", "1", "--save", "ckpt"});
  write_bytes(folder_ / "llama/config.json",
              std::regex_replace(std::string(kConfigJson), std::regex("10000.0"), "500000.0"));
  EXPECT_THAT(
      train({"--model", "hf:llama", "--resume", "ckpt", "--steps", "2"}, 1).err,
      HasSubstr("ckpt/global_step1: was saved of a model whose config.json has 10000.0 for rope_theta, and now it has "
                "500000.0. Resume with the folder as it was, or leave --model out: the checkpoint holds the "
                "configuration."));
}

TEST_F(PretrainedModels, MayStartFromScratchOrFromOtherWeights) {
  make_folder();
  const std::string fresh = train({"--model", "hf:llama", "--from-scratch", "--steps", "1"}).out;
  EXPECT_THAT(fresh, Not(HasSubstr("started from the weights")));
  EXPECT_THAT(train({"--model", "hf:shape", "--init-from", "llama", "--steps", "1"}).out,
              HasSubstr("started from the weights of llama"));
  EXPECT_THAT(train({"--model", "hf:llama", "--from-scratch", "--steps", "1", "--set",
                     "capstan.model.params.config.num_hidden_layers=1"})
                  .out,
              HasSubstr("parameters in 12 tensors"));
}

TEST_F(PretrainedModels, AreEqualAtEveryStage) {
  make_folder();
  for (const char* stage : {"0", "3"}) {
    const std::string name = std::string("stage") + stage;
    write_config("config.json", "0.01", R"(, "zero_optimization": {"stage": )" + std::string(stage) + "}");
    run({"launch", "-n", "2", "train", "--config", "config.json", "--data", "text.txt", "--seq", "32", "--model",
         "hf:llama", "--steps", "2", "--save", name});
    run({"export", "--checkpoint", name, "--to", "safetensors", "--out", name + ".safetensors"});
    run({"export", "--checkpoint", name, "--to", "hf", "--out", name + "_hf"});
    EXPECT_EQ(bytes(name + "_hf/tokenizer.json"), bytes("llama/tokenizer.json"));
  }
  EXPECT_EQ(bytes("stage0.safetensors"), bytes("stage3.safetensors"));
}

TEST_F(PretrainedModels, GoToLlamaCppAndComeBack) {
  make_folder();
  EXPECT_THAT(run({"export", "--checkpoint", "made", "--to", "gguf", "--out", "net.gguf"}).out,
              HasSubstr("The file has no tokenizer"));
  EXPECT_EQ(loss_of({"--model", "net.gguf"}), loss_of({"--checkpoint", "made"}));
  train({"--model", "hf:net.gguf", "--steps", "1", "--save", "ckpt"});
  run({"export", "--checkpoint", "ckpt", "--to", "gguf", "--dtype", "q8_0", "--out", "q8.gguf"});
  EXPECT_NEAR(loss_of({"--model", "q8.gguf"}), loss_of({"--checkpoint", "ckpt"}), 0.01);
  EXPECT_LT(fs::file_size(folder_ / "q8.gguf"), fs::file_size(folder_ / "net.gguf") / 3);
  EXPECT_THAT(run({"export", "--checkpoint", "ckpt", "--to", "hf", "--dtype", "q8_0", "--out", "x"}, 2).err,
              HasSubstr("--dtype q8_0 goes with --to gguf, and not with --compressed, which writes codes."));
}

TEST_F(PretrainedModels, ThatAreBrokenAreNamed) {
  make_folder();
  const auto refusal = [&](const std::string& model, int code) {
    return train({"--model", model, "--steps", "1"}, code).err;
  };
  fs::copy(folder_ / "llama", folder_ / "wide");
  write_bytes(folder_ / "wide/config.json",
              std::regex_replace(std::string(kConfigJson), std::regex("64,\n  \"max"), "96,\n  \"max"));
  EXPECT_THAT(refusal("hf:wide", 1),
              AllOf(HasSubstr("wide: does not fit model 'decoder'. Of another shape:"),
                    HasSubstr("'model.layers.0.mlp.up_proj.weight' ([64, 32] in the file, [96, 32] in the model)")));
  fs::copy(folder_ / "llama", folder_ / "sharded");
  fs::remove(folder_ / "sharded/model.safetensors");
  write_bytes(folder_ / "sharded/model.safetensors.index.json",
              R"({"weight_map": {"model.norm.weight": "model-1.safetensors"}})");
  EXPECT_THAT(refusal("hf:sharded", 1), HasSubstr("sharded/model-1.safetensors': No such file or directory."));
  write_bytes(folder_ / "sharded/model.safetensors.index.json",
              R"({"weight_map": {"model.norm.weight": "../made/w.safetensors"}})");
  EXPECT_THAT(refusal("hf:sharded", 1), HasSubstr("'../made/w.safetensors' is not a file's name."));
  fs::copy(folder_ / "llama", folder_ / "cut");
  fs::resize_file(folder_ / "cut/model.safetensors", 5000);
  EXPECT_THAT(refusal("hf:cut", 1), HasSubstr("cut/model.safetensors': "));
  fs::copy(folder_ / "llama", folder_ / "whole");
  write_bytes(folder_ / "whole/model.safetensors",
              std::regex_replace(bytes("llama/model.safetensors"), std::regex("\"F32\""), "\"I32\""));
  EXPECT_THAT(refusal("hf:whole", 1),
              HasSubstr("Of a type that holds no weights by itself: 'model.embed_tokens.weight' (Int in the file)"));
  std::string nan = bytes("llama/model.safetensors");
  std::fill(nan.end() - 64, nan.end(), '\xff');
  write_bytes(folder_ / "whole/model.safetensors", nan);
  EXPECT_THAT(refusal("hf:whole", 1), HasSubstr("not finite"));
  write_bytes(folder_ / "sharded/config.json", R"({"model_type": "mixtral"})");
  EXPECT_THAT(refusal("hf:sharded", 3), HasSubstr("no plugin takes the model type 'mixtral'."));
  write_bytes(folder_ / "sharded/config.json",
              R"({"auto_map": {"AutoModelForCausalLM": "modeling_net.Net"}, "model_type": "mixtral"})");
  EXPECT_THAT(refusal("hf:sharded", 3),
              HasSubstr("The folder brings Python code for it (auto_map), which is never run."));
  EXPECT_THAT(refusal("hf:nowhere", 3), HasSubstr("'nowhere': there is no such folder or file."));
  write_bytes(folder_ / "bad.gguf", "GGUF");
  EXPECT_THAT(refusal("bad.gguf", 3),
              HasSubstr("'bad.gguf': it is cut off or damaged: the version would take 4 bytes"));
  EXPECT_THAT(
      run({"eval", "--config", "config.json", "--data", "text.txt", "--model", "hf:llama", "--set",
           "capstan.model.weights="},
          2)
          .err,
      HasSubstr("eval: no weights are named. Give --checkpoint DIR[:TAG], --init-from model.safetensors or --model "
                "hf:FOLDER."));
}

/// Model types that llama.cpp knows, exported with their tokenizers: llama.cpp computes what transformers computes, and
/// writes the tokens that capstan generate writes.
TEST_F(PretrainedModels, OfEveryArchitectureAreTheSameInLlamaCpp) {
  const std::string python = test::reader_python();
  if (python.empty()) GTEST_SKIP() << test::kNoReaders;
  const auto of_python = [&](const char* what) {
    return run_process({python, "-W", "ignore", CAPSTAN_TEST_SOURCE_DIR "/tests/cli/gguf_architectures.py", what,
                        folder_.path().string()});
  };
  const ProcessResult made = of_python("make");
  ASSERT_EQ(made.exit_code, 0) << made.err;
  write_config("config.json", "0.0");  // a step of rate 0 changes no weight
  std::vector<std::string> names;      // of the folders, before checkpoints stand beside them
  for (const auto& entry : fs::directory_iterator(folder_.path())) {
    if (entry.is_directory()) names.push_back(entry.path().filename().string());
  }
  for (const std::string& name : names) {
    train({"--model", "hf:" + name, "--steps", "1", "--save", name + "_ckpt"});
    const std::string out =
        run({"export", "--checkpoint", name + "_ckpt", "--to", "gguf", "--out", name + ".gguf"}).out;
    const bool has_text = name == "bytes" || name == "sentences";
    EXPECT_EQ(out.find("The file has no tokenizer") == std::string::npos, has_text) << name << ": " << out;
  }
  const ProcessResult theirs = of_python("check");
  ASSERT_EQ(theirs.exit_code, 0) << theirs.err;
  std::istringstream lines(theirs.out);
  for (const char* name : {"bytes_ckpt", "sentences_ckpt"}) {
    std::string prompt, greedy;
    ASSERT_TRUE(std::getline(lines, prompt) && std::getline(lines, greedy)) << theirs.out;
    EXPECT_EQ(
        run({"generate", "--config", "config.json", "--checkpoint", name, "--ids", prompt, "--max-new", "12"}).out,
        greedy + "\n")
        << name;
  }
  // And back: the windows, bases and scales of the file are those of the folder.
  EXPECT_NEAR(loss_of({"--model", "sentences.gguf"}), loss_of({"--checkpoint", "sentences_ckpt"}), 1e-5);
}

/// Files that transformers and the package gguf have written, trained here, and read by them again.
TEST_F(PretrainedModels, OfTransformersAndLlamaCppAreTheirOwnAfterwards) {
  const std::string python = test::reader_python();
  if (python.empty()) GTEST_SKIP() << test::kNoReaders;
  const auto of_python = [&](const char* what) {
    return run_process({python, "-W", "ignore", kPython, what, folder_.path().string()});
  };
  const ProcessResult made = of_python("make");
  ASSERT_EQ(made.exit_code, 0) << made.err;
  train({"--model", "hf:llama", "--steps", "2", "--save", "llama_ckpt", "--seq", "64"});
  run({"export", "--checkpoint", "llama_ckpt", "--to", "hf", "--out", "llama_out"});
  const double loss = loss_of({"--checkpoint", "llama_ckpt", "--seq", "64"});
  // A step of rate 0 changes no weight.
  write_config("config.json", "0.0");
  train({"--model", "hf:qwen2", "--steps", "1", "--save", "qwen2_ckpt"});
  run({"export", "--checkpoint", "qwen2_ckpt", "--to", "hf", "--dtype", "bfloat16", "--out", "qwen2_out"});
  train({"--model", "mixed.gguf", "--steps", "1", "--save", "mixed_ckpt"});
  run({"export", "--checkpoint", "mixed_ckpt", "--to", "hf", "--out", "mixed_out"});
  run({"export", "--checkpoint", "mixed_ckpt", "--to", "gguf", "--out", "mixed_f32.gguf"});
  run({"export", "--checkpoint", "mixed_ckpt", "--to", "gguf", "--dtype", "q8_0", "--out", "mixed_q8.gguf"});
  const ProcessResult theirs = of_python("check");
  ASSERT_EQ(theirs.exit_code, 0) << theirs.err;
  EXPECT_NEAR(std::stod(theirs.out), loss, 2e-6);
}

TEST_F(PretrainedModels, WarnOfTokensOfAnotherTokenizer) {
  make_folder();
  write_bytes(folder_ / "llama/tokenizer.json", test::byte_tokenizer().dump());
  run({"data", "tokenize", "text.txt", "--tokenizer", "llama", "--end-token", "none", "--out", "data.bin"});
  const auto warnings = [&] {
    const std::vector<std::string> words = {"train", "--config", "config.json", "--data",  "data.bin", "--seq",
                                            "32",    "--model",  "hf:llama",    "--steps", "1"};
    return run(words).err;
  };
  EXPECT_THAT(warnings(), Not(HasSubstr("was tokenized with")));
  write_bytes(folder_ / "llama/tokenizer.json", test::byte_tokenizer().dump() + "\n");
  EXPECT_THAT(warnings(),
              HasSubstr("warning: 'data.bin' was tokenized with 'llama/tokenizer.json', and the model comes with "
                        "'llama/tokenizer.json', another file (its SHA-256 differs). Unless the two stand for the same "
                        "tokens, the model reads other text than was tokenized: tokenize again with --tokenizer "
                        "'llama'."));
}

}  // namespace
}  // namespace capstan::cli
