// `capstan data tokenize`: text to tokens, with a tokenizer of bytes that the tests write.

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <csignal>
#include <cstring>
#include <fstream>

#include "capstan/sdk/indexed_file.hpp"
#include "core/text/json.hpp"
#include "tests/cli/programs.hpp"
#include "tests/support/byte_tokenizer.hpp"

namespace capstan::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class DataTokenize : public ::testing::Test {
 protected:
  DataTokenize() {
    std::filesystem::create_directory(folder_ / "tok");
    write_tokenizer(test::byte_tokenizer());
    write_bytes(folder_ / "tok/tokenizer_config.json", R"({"eos_token": {"content": "<end>"}})");
  }

  void write_tokenizer(const Json& json) const { write_bytes(folder_ / "tok/tokenizer.json", json.dump()); }
  std::vector<std::string> words(const std::vector<std::string>& more) const {
    std::vector<std::string> all = {"data", "tokenize", "--tokenizer", "tok"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  ProcessResult tokenize(const std::vector<std::string>& more) const { return run_capstan(folder_, words(more)); }
  std::string error(const std::vector<std::string>& more, int exit_code) const {
    const ProcessResult result = tokenize(more);
    EXPECT_EQ(result.exit_code, exit_code) << result.err;
    return result.err;
  }
  template <class T>
  std::vector<T> tokens(const std::string& name) const {
    const std::string bytes = read_bytes(folder_ / name);
    std::vector<T> out(bytes.size() / sizeof(T));
    std::memcpy(out.data(), bytes.data(), bytes.size());
    return out;
  }

  TemporaryFolder folder_;
};

TEST_F(DataTokenize, EndsEachFileOfAFolderWithTheEosTokenAndRecordsWhatItMade) {
  std::filesystem::create_directories(folder_ / "corpus/b");
  write_bytes(folder_ / "corpus/c.txt", "xy");
  write_bytes(folder_ / "corpus/a.txt", "a\xC3\xA9");
  write_bytes(folder_ / "corpus/b/d.txt", "z<end>");  // has its end already
  const ProcessResult result = tokenize({"corpus", "--out", "corpus.bin", "--verify"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "corpus.bin: 3 documents, 9 tokens of uint16\n");
  EXPECT_THAT(result.err, HasSubstr("verified: the tokens of 3 documents decode to the text"));
  EXPECT_THAT(tokens<std::uint16_t>("corpus.bin"), ElementsAre('a', 0xC3, 0xA9, 256, 'z', 256, 'x', 'y', 256));
  const Json record = Json::parse(read_bytes(folder_ / "corpus.bin.json"));
  EXPECT_EQ(record.at("format"), Json("uint16"));
  EXPECT_EQ(record.at("documents"), Json(3));
  EXPECT_EQ(record.at("tokens"), Json(9));
  EXPECT_EQ(record.at("largest_token"), Json(256));
  EXPECT_EQ(record.at("vocabulary_size"), Json(257));
  EXPECT_EQ(record.at("end_token"), Json(256));
  EXPECT_EQ(record.at("tokenizer").at("file"), Json("tok/tokenizer.json"));
  const ProcessResult sum = run_process({"sha256sum", (folder_ / "tok/tokenizer.json").string()});
  EXPECT_EQ(record.at("tokenizer").at("sha256"), Json(sum.out.substr(0, 64)));
}

TEST_F(DataTokenize, WritesLinesOfJsonAsDocumentsOfAnIndex) {
  write_bytes(folder_ / "rows.jsonl", "{\"body\": \"ab\"}\n\n{\"body\": \"\"}\n{\"body\": \"\\u20ac\\u0000\"}\n");
  const ProcessResult result = tokenize({"rows.jsonl", "--key", "body", "--out", "rows.idx", "--end-token", "none"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "rows.idx: 2 documents, 6 tokens of uint16; 1 document without text left out\n");
  const sdk::IndexedRows rows((folder_ / "rows").string());
  EXPECT_THAT(rows.row(0), ElementsAre('a', 'b'));
  EXPECT_THAT(rows.row(1), ElementsAre(0xE2, 0x82, 0xAC, 0));
  EXPECT_TRUE(Json::parse(read_bytes(folder_ / "rows.idx.json")).at("end_token").is_null());
}

TEST_F(DataTokenize, TakesWiderTokensForAVocabularyBeyond16Bits) {
  Json json = test::byte_tokenizer();
  json["added_tokens"].push_back(Json::parse(R"({"id": 70000, "content": "<far>"})"));
  write_tokenizer(json);
  write_bytes(folder_ / "a.txt", "a<far>");
  ASSERT_EQ(tokenize({"a.txt", "--out", "a.bin"}).out, "a.bin: 1 document, 3 tokens of uint32\n");
  EXPECT_THAT(tokens<std::uint32_t>("a.bin"), ElementsAre('a', 70000, 256));
  ASSERT_EQ(tokenize({"a.txt", "--out", "a.idx", "--force"}).out, "a.idx: 1 document, 3 tokens of int32\n");
  EXPECT_THAT(sdk::IndexedRows((folder_ / "a").string()).row(0), ElementsAre('a', 70000, 256));
}

TEST_F(DataTokenize, AddsTheSpecialTokensOfTheTokenizerWhereAsked) {
  Json json = test::byte_tokenizer();
  json["post_processor"] = Json::parse(R"({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x"}},
    {"Sequence": {"id": "A"}}, {"SpecialToken": {"id": "y"}}],
    "special_tokens": {"x": {"ids": [1, 2]}, "y": {"ids": [3]}}})");
  json["truncation"] = Json::parse(R"({"max_length": 1})");
  write_tokenizer(json);
  write_bytes(folder_ / "a.txt", "a");
  const ProcessResult result = tokenize({"a.txt", "--out", "a.bin", "--special-tokens"});
  EXPECT_THAT(tokens<std::uint16_t>("a.bin"), ElementsAre(1, 2, 'a', 3, 256));
  EXPECT_THAT(result.err, HasSubstr("tok/tokenizer.json: truncation has no effect: documents are tokenized whole"));
  tokenize({"a.txt", "--out", "plain.bin", "--end-token", "7"});
  EXPECT_THAT(tokens<std::uint16_t>("plain.bin"), ElementsAre('a', 7));
}

TEST_F(DataTokenize, NamesTheFirstTextThatDoesNotComeBack) {
  Json json = test::byte_tokenizer();
  json["normalizer"] = Json::parse(R"({"type": "Lowercase"})");
  write_tokenizer(json);
  write_bytes(folder_ / "a.txt", "same");
  write_bytes(folder_ / "b.txt", "not the Same");
  const ProcessResult result = tokenize({"a.txt", "b.txt", "--out", "a.bin", "--verify"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.err, HasSubstr("verified: 1 document of 2 decodes to another text; b.txt: byte 8: the text has "
                                    "\"Same\", and its tokens decode to \"s\". This tokenizer is not lossless: it "
                                    "rewrites text, leaves out some, or has no token for some."));
}

TEST_F(DataTokenize, ReplacesBytesThatAreNotUtf8WhereAsked) {
  write_bytes(folder_ / "a.txt", std::string(300000, 'x') + "\xFFy\xE2\x82");
  EXPECT_THAT(error({"a.txt", "--out", "a.bin"}, 1),
              HasSubstr("a.txt: byte 300,000 is not UTF-8. Convert the file, for instance with 'iconv -f latin1 -t "
                        "utf8', or write U+FFFD in place of such bytes with --replace-invalid."));
  ASSERT_EQ(tokenize({"a.txt", "--out", "a.bin", "--replace-invalid"}).exit_code, 0);
  const auto all = tokens<std::uint16_t>("a.bin");
  const std::vector<std::uint16_t> end(all.begin() + 300000, all.end());
  EXPECT_THAT(end, ElementsAre(0xEF, 0xBF, 0xBD, 'y', 0xEF, 0xBF, 0xBD, 256));
}

TEST_F(DataTokenize, NamesWhatIsWrong) {
  write_bytes(folder_ / "a.txt", "a");
  write_bytes(folder_ / "empty.txt", "");
  write_bytes(folder_ / "bad.jsonl", "{\"text\": \"a\"}\n{\"text\": 1}\n");
  write_bytes(folder_ / "broken.jsonl", "{\"text\": \"a\n");
  EXPECT_THAT(error({"a.txt", "--out", "a.txt2"}, 2),
              HasSubstr("--out: must end in .bin, for tokens alone, or in .idx, for documents as Megatron-LM has them; "
                        "got 'a.txt2'."));
  EXPECT_THAT(error({"a.txt", "--out", "x.bin", "--end-token", "<x>"}, 2),
              HasSubstr("--end-token: '<x>' is not a token of tok/tokenizer.json, and not an id below 257."));
  EXPECT_THAT(error({"a.txt", "--out", "x.bin", "--end-token", "257"}, 2), HasSubstr("not an id below 257."));
  EXPECT_THAT(error({"a.bin", "--out", "x.bin"}, 2),
              HasSubstr("'a.bin' holds tokens. Name files of text, or give --from text."));
  EXPECT_THAT(error({"none.txt", "--out", "x.bin"}, 1), HasSubstr("none.txt: cannot be read: No such file"));
  EXPECT_THAT(error({"empty.txt", "--out", "x.bin"}, 1), HasSubstr("the inputs hold no text."));
  EXPECT_THAT(error({"bad.jsonl", "--out", "x.bin"}, 1),
              HasSubstr("bad.jsonl:2: has no text under \"text\" but a value of type integer. Name the member with "
                        "--key."));
  EXPECT_THAT(error({"broken.jsonl", "--out", "x.bin"}, 1), HasSubstr("broken.jsonl:1: JSON, line 1, column"));
  ASSERT_EQ(tokenize({"a.txt", "--out", "x.bin"}).exit_code, 0);
  EXPECT_THAT(error({"a.txt", "--out", "x.bin"}, 2),
              HasSubstr("--out: 'x.bin' exists. Choose another name, or replace it with --force."));
  EXPECT_THAT(error({"x.bin", "--from", "text", "--out", "x.bin", "--force"}, 2),
              HasSubstr("--out: 'x.bin' is what is read. Choose another name."));
  write_bytes(folder_ / "tok/tokenizer_config.json", R"({"eos_token": "</s>"})");
  EXPECT_THAT(error({"a.txt", "--out", "y.bin"}, 2),
              HasSubstr("tok/tokenizer_config.json: eos_token is '</s>', which tok/tokenizer.json does not have. Give "
                        "another one with --end-token, or 'none'."));
  std::filesystem::remove(folder_ / "tok/tokenizer_config.json");
  EXPECT_THAT(error({"a.txt", "--out", "y.bin"}, 2),
              HasSubstr("--end-token: which token ends a document? tok/tokenizer_config.json names no eos_token. Give "
                        "the token's text or id, or 'none'."));
  std::filesystem::remove(folder_ / "tok/tokenizer.json");
  EXPECT_THAT(error({"a.txt", "--out", "y.bin"}, 1), HasSubstr("tok: has no tokenizer.json"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "y.bin"));
}

/// A pipe from which the command reads: it cannot end before the test wants it.
class Pipe {
 public:
  Pipe(const std::filesystem::path& path, std::vector<std::string> command, const TemporaryFolder& folder) {
    EXPECT_EQ(::mkfifo(path.c_str(), 0600), 0);
    command.insert(command.begin(), kCapstan);
    process = std::make_unique<Process>(command, ProcessOptions{.folder = folder.path()});
    in.open(path, std::ios::binary);
  }
  std::unique_ptr<Process> process;
  std::ofstream in;
};

TEST_F(DataTokenize, LeavesNothingBehindAnInterruptAndWritesTheSameBytesBehindAKill) {
  std::string text;
  for (int i = 0; i < 200'000; ++i) text += "line " + std::to_string(i) + "\n";
  write_bytes(folder_ / "whole.txt", text);
  ASSERT_EQ(tokenize({"whole.txt", "--out", "undisturbed.bin"}).exit_code, 0);
  std::signal(SIGPIPE, SIG_IGN);  // the process may end while the test writes
  for (const int signal : {SIGTERM, SIGKILL}) {
    Pipe pipe(folder_ / ("pipe" + std::to_string(signal)), words({"pipe" + std::to_string(signal), "--out", "out.bin"}),
              folder_);
    // The pipe holds 64 KiB: what is written beyond was read.
    pipe.in.write(text.data(), 2'000'000).flush();
    EXPECT_TRUE(std::filesystem::exists(folder_ / "out.bin.part"));
    EXPECT_FALSE(std::filesystem::exists(folder_ / "out.bin"));
    pipe.process->send(signal);
    if (signal == SIGTERM) {
      pipe.in.write(text.data(), 300'000).flush();
      pipe.in.close();
      const ProcessResult result = pipe.process->wait();
      EXPECT_EQ(result.exit_code, 130);
      EXPECT_THAT(result.err, HasSubstr("interrupted; nothing was written"));
      EXPECT_FALSE(std::filesystem::exists(folder_ / "out.bin.part"));
    } else {
      EXPECT_EQ(pipe.process->wait().signal, SIGKILL);
      EXPECT_TRUE(std::filesystem::exists(folder_ / "out.bin.part"));
    }
    EXPECT_FALSE(std::filesystem::exists(folder_ / "out.bin"));
  }
  ASSERT_EQ(tokenize({"whole.txt", "--out", "out.bin"}).exit_code, 0);
  EXPECT_EQ(read_bytes(folder_ / "out.bin"), read_bytes(folder_ / "undisturbed.bin"));
  EXPECT_EQ(tokens<std::uint16_t>("out.bin").size(), text.size() + 1);
}

TEST_F(DataTokenize, ShowsHowFastItReadsOnATerminal) {
  write_bytes(folder_ / "a.txt", std::string(5'000'000, 'x') + "\n");
  std::vector<std::string> command = words({"a.txt", "--out", "a.bin"});
  command.insert(command.begin(), kCapstan);
  const ProcessResult result = run_process(command, {.folder = folder_.path(), .terminal = true});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out, HasSubstr(" of 5.00 MB  "));
  EXPECT_THAT(result.out, HasSubstr("B/s  ETA 0:00:"));
}

}  // namespace
}  // namespace capstan::cli
