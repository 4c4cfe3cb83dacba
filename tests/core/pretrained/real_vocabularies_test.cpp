// Vocabularies of models that people use, from packages of .venv-assets.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "core/errors.hpp"
#include "core/pretrained/model_text.hpp"
#include "tests/support/assets.hpp"
#include "tests/support/process.hpp"
#include "tests/support/readers.hpp"
#include "tests/support/temporary_folder.hpp"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using tokenizer::Ids;

/// The tokens of llama.cpp's own tests: NAME.gguf.inp has texts, and NAME.gguf.out their tokens, a line each.
void expect_expected_tokens(const fs::path& file) {
  const ModelText text(file);
  tokenizer::Encoder encoder(text.tokenizer());
  const std::string inputs = read_bytes(file.string() + ".inp");
  const std::string separator = "\n__ggml_vocab_test__\n";
  std::istringstream outputs(read_bytes(file.string() + ".out"));
  int compared = 0;
  for (std::size_t at = 0, end = 0; (end = inputs.find(separator, at)) != std::string::npos;
       at = end + separator.size()) {
    std::string line;
    ASSERT_TRUE(std::getline(outputs, line)) << file;
    std::istringstream numbers(line);
    Ids ids, theirs;
    for (tokenizer::Id id = 0; numbers >> id;) theirs.push_back(id);
    encoder.encode(std::string_view(inputs).substr(at, end - at), ids);
    EXPECT_EQ(ids, theirs) << file << ": " << Json(inputs.substr(at, end - at)).dump();
    ++compared;
  }
  EXPECT_GE(compared, 45) << file;
}

TEST(RealVocabularies, OfGgufFilesGiveTheTokensThatLlamaCppExpects) {
  const std::string assets = test::assets_folder();
  if (assets.empty()) GTEST_SKIP() << test::kNoAssets;
  int files = 0;
  for (const auto& entry : fs::directory_iterator(assets + "/llama.cpp/models")) {
    if (entry.path().extension() != ".gguf" || !fs::exists(entry.path().string() + ".out")) continue;
    const std::string name = entry.path().stem();
    if (name == "ggml-vocab-gemma-4" || name == "ggml-vocab-deepseek-llm") {
      EXPECT_THROW(ModelText(entry.path()), RuntimeFault) << name;
      continue;
    }
    expect_expected_tokens(entry.path());
    ++files;
  }
  EXPECT_EQ(files, 13);
}

TEST(RealVocabularies, GiveTheTokensOfTheirOwnLibraries) {
  const std::string assets = test::assets_folder(), python = test::reader_python();
  if (assets.empty()) GTEST_SKIP() << test::kNoAssets;
  if (python.empty()) GTEST_SKIP() << test::kNoReaders;
  const TemporaryFolder folder;
  const ProcessResult made =
      run_process({python, "-W", "ignore", CAPSTAN_TEST_SOURCE_DIR "/tests/core/pretrained/real_vocabularies.py",
                   assets, folder.path().string()},
                  {.environment = {"TOKENIZERS_PARALLELISM=false", "OMP_NUM_THREADS=1"}});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  for (const std::string name :
       {"smollm2.gguf", "qwen.tiktoken", "mistral_1", "mistral_3", "anthropic.json", "deepseek.json"}) {
    const ModelText text(folder / name);
    tokenizer::Encoder encoder(text.tokenizer());
    std::ifstream lines(folder / (name + ".jsonl"));
    int compared = 0;
    for (std::string line; std::getline(lines, line); ++compared) {
      const Json row = Json::parse(line);
      Ids ids = text.tokenizer().before(), theirs;
      encoder.encode(row.at("text").as_string(), ids);
      for (const Json& id : row.at("ids").as_array()) theirs.push_back(static_cast<tokenizer::Id>(id.as_integer()));
      EXPECT_EQ(ids, theirs) << name << ": " << row.at("text").dump();
    }
    EXPECT_GT(compared, 300) << name;
  }
}

}  // namespace
}  // namespace capstan
