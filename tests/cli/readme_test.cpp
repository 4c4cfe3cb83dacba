// Every command of the README's shell blocks, in its order, with the README's own configuration; runs are shortened.

#include <gmock/gmock.h>
#include <unistd.h>

#include <cstdlib>
#include <sstream>

#include "tests/cli/programs.hpp"
#include "tests/support/byte_tokenizer.hpp"

namespace capstan::cli {
namespace {

/// The contents of the fenced blocks of that language.
std::vector<std::string> blocks(const std::string& text, const std::string& language) {
  const std::string open = "\n```" + language + "\n", close = "```";
  std::vector<std::string> found;
  for (auto at = text.find(open); at != std::string::npos; at = text.find(open, at)) {
    const auto begin = at + open.size();
    at = text.find(close, begin);
    found.push_back(text.substr(begin, at - begin));
  }
  return found;
}

std::vector<std::string> commands(const std::string& readme) {
  std::vector<std::string> lines;
  for (const std::string& block : blocks(readme, "sh")) {
    std::istringstream in(block);
    for (std::string line; std::getline(in, line);) lines.push_back(line);
  }
  return lines;
}

/// Makes SmolLM2/, of far fewer weights, with a tokenizer of bytes.
void write_pretrained(const TemporaryFolder& folder) {
  std::filesystem::create_directory(folder / "shape");
  write_bytes(folder / "shape/config.json",
              R"({"model_type": "llama", "vocab_size": 257, "hidden_size": 32, "intermediate_size": 32,
                 "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 128})");
  run_capstan(folder, {"train", "--config", "ds_config.json", "--model", "hf:shape", "--from-scratch", "--data",
                       "corpus", "--steps", "1", "--save", "made", "--set", "csv_monitor.enabled=false"});
  run_capstan(folder, {"export", "--checkpoint", "made", "--to", "hf", "--out", "SmolLM2"});
  Json tokenizer = test::byte_tokenizer();
  tokenizer["pre_tokenizer"]["use_regex"] = true;  // as GPT-2's, which a GGUF file can name
  write_bytes(folder / "SmolLM2/tokenizer.json", tokenizer.dump());
  write_bytes(folder / "SmolLM2/tokenizer_config.json", R"({"eos_token": "<end>"})");
}

TEST(Readme, ShowsTheTwoScriptsOfTheFirstScreen) {
  const std::string readme = read_bytes(CAPSTAN_TEST_SOURCE_DIR "/README.md");
  const std::string first_screen = readme.substr(0, readme.find("## Use it"));

  for (const char* script : {"scripts/train", "scripts/test"}) {
    EXPECT_THAT(first_screen, ::testing::HasSubstr(std::string("./") + script));
    EXPECT_EQ(::access((std::string(CAPSTAN_TEST_SOURCE_DIR "/") + script).c_str(), X_OK), 0) << script;
  }
}

TEST(Readme, EveryCommandWorks) {
  const TemporaryFolder folder;
  const std::string readme = read_bytes(CAPSTAN_TEST_SOURCE_DIR "/README.md");
  write_bytes(folder / "ds_config.json", blocks(readme, "json").at(0));
  std::filesystem::create_directory(folder / "corpus");
  write_bytes(folder / "corpus/text.txt", some_text());
  write_pretrained(folder);
  const std::string path = std::string("PATH=") + CAPSTAN_TEST_BUILD_DIR + "/bin:" + std::getenv("PATH");

  int steps = 0;
  std::string printed;
  const auto lines = commands(readme);
  ASSERT_GE(lines.size(), 9u);
  for (std::string line : lines) {
    if (line.starts_with("capstan train")) line += " --set capstan.run.steps=" + std::to_string(steps += 2);
    const ProcessResult result = run_process({"sh", "-c", line}, {.environment = {path}, .folder = folder.path()});
    EXPECT_EQ(result.exit_code, 0) << line << "\n" << result.out << result.err;
    printed += result.out;
  }
  EXPECT_TRUE(std::filesystem::exists(folder / "model.safetensors"));
  EXPECT_EQ(read_bytes(folder / "ckpt/latest"), "global_step4");
  for (const char* text : {"step=0, sample 1: \"The license \" -> ", "step=6, sample 1: \"The license \" -> ",
                           "\nThe license ", "bits_per_byte="}) {
    EXPECT_THAT(printed, ::testing::HasSubstr(text));
  }
  EXPECT_TRUE(std::filesystem::exists(folder / "tuned_hf/tokenizer.json"));
  EXPECT_TRUE(std::filesystem::exists(folder / "tuned.gguf"));
}

}  // namespace
}  // namespace capstan::cli
