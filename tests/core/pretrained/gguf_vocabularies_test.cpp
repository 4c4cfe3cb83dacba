// Tokenizers of GGUF files beside llama.cpp.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "capstan/sdk/mapped_file.hpp"
#include "core/pretrained/gguf_header.hpp"
#include "core/pretrained/gguf_tokenizer.hpp"
#include "core/text/tokenizer/tokenizer.hpp"
#include "core/text/tokenizer/unicode.hpp"
#include "tests/support/process.hpp"
#include "tests/support/readers.hpp"
#include "tests/support/temporary_folder.hpp"

namespace capstan {
namespace {

using tokenizer::Ids;

/// Whether the tokenizers library, whose ids ours are, takes a text otherwise than llama.cpp does: control characters
/// and words of more than 100 characters in WordPiece, characters of several code points in a map of characters.
bool is_told_apart(const std::string& kind, const std::string& text) {
  bool apart = false;
  tokenizer::each_character(text, [&](char32_t character) {
    if (kind == "bert") apart = apart || (tokenizer::is_control(character) && character != '\n' && character != '\t');
    if (kind == "t5" || kind == "bert") apart = apart || tokenizer::is_mark(character);
  });
  return apart || (kind == "bert" && text.find("aaaaaaaaaaaaaaaa") != std::string::npos) ||
         (kind == "bert" &&
          (text.find("abababababab") != std::string::npos || text.find("yyyyyyyy") != std::string::npos));
}

TEST(GgufVocabularies, GiveTheTokensOfLlamaCpp) {
  const std::string python = test::reader_python();
  if (python.empty()) GTEST_SKIP() << test::kNoReaders;
  const TemporaryFolder folder;
  const ProcessResult made =
      run_process({python, "-W", "ignore", CAPSTAN_TEST_SOURCE_DIR "/tests/core/pretrained/gguf_vocabularies.py",
                   folder.path().string()});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  for (const std::string kind : {"llama", "llama_without_prefix", "t5", "bert"}) {
    const std::string path = (folder / (kind + ".gguf")).string();
    const sdk::MappedFile file(path);
    const GgufTokenizer read = tokenizer_of_gguf(parse_gguf(file.data(), file.size(), path), path);
    const tokenizer::Tokenizer tokenizer(read.tokenizer, path);
    tokenizer::Encoder encoder(tokenizer);
    std::ifstream lines(folder / (kind + ".jsonl"));
    int compared = 0;
    for (std::string line; std::getline(lines, line);) {
      const Json row = Json::parse(line);
      const std::string& text = row.at("text").as_string();
      if (is_told_apart(kind, text)) continue;
      Ids ids = tokenizer.before(), theirs;
      encoder.encode(text, ids);
      ids.insert(ids.end(), tokenizer.after().begin(), tokenizer.after().end());
      for (const Json& id : row.at("ids").as_array()) theirs.push_back(static_cast<tokenizer::Id>(id.as_integer()));
      EXPECT_EQ(ids, theirs) << kind << ": " << Json(text).dump();
      ++compared;
    }
    EXPECT_GT(compared, 200) << kind;
  }
}

}  // namespace
}  // namespace capstan
