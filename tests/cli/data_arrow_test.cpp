// `capstan data` with Parquet and arrow files that pyarrow writes: their rows are those of the same lines of JSON.

#include <gmock/gmock.h>

#include "tests/cli/programs.hpp"
#include "tests/support/byte_tokenizer.hpp"
#include "tests/support/readers.hpp"

namespace capstan::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

/// A prefix of its own in which capstan runs: the program with its libraries, and nothing in libexec.
std::string copied_capstan(const TemporaryFolder& folder) {
  std::filesystem::create_directories(folder / "prefix/bin");
  std::filesystem::create_directories(folder / "prefix/libexec");
  std::filesystem::copy_file(kCapstan, folder / "prefix/bin/capstan");
  std::filesystem::create_directory_symlink(CAPSTAN_TEST_BUILD_DIR "/lib", folder / "prefix/lib");
  return (folder / "prefix/bin/capstan").string();
}

class DataArrow : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string python = test::arrow_python();
    if (python.empty()) GTEST_SKIP() << test::kNoArrow;
    if (!std::filesystem::exists(CAPSTAN_TEST_BUILD_DIR "/libexec/capstan-arrow")) {
      GTEST_SKIP() << "no .venv-arrow when the build was configured: configure it again";
    }
    const ProcessResult made =
        run_process({python, CAPSTAN_TEST_SOURCE_DIR "/tests/cli/arrow_files.py", folder_.path().string()});
    ASSERT_EQ(made.exit_code, 0) << made.err;
    std::filesystem::create_directory(folder_ / "tok");
    write_bytes(folder_ / "tok/tokenizer.json", test::byte_tokenizer().dump());
  }

  ProcessResult data(std::vector<std::string> words, ProcessOptions options = {}) const {
    words.insert(words.begin(), "data");
    return run_capstan(folder_, words, options);
  }
  ProcessResult tokenize(const std::string& input, const std::string& out, std::vector<std::string> more = {}) const {
    std::vector<std::string> words = {"tokenize", input, "--tokenizer", "tok", "--end-token", "256", "--out", out};
    words.insert(words.end(), more.begin(), more.end());
    return data(words);
  }
  std::string error(const std::string& input, std::vector<std::string> more = {}) const {
    const ProcessResult result = tokenize(input, "x.bin", std::move(more));
    EXPECT_EQ(result.exit_code, 1) << result.out;
    EXPECT_FALSE(std::filesystem::exists(folder_ / "x.bin"));
    return result.err;
  }

  TemporaryFolder folder_;
};

TEST_F(DataArrow, GivesTheTokensOfTheSameLinesOfJson) {
  ASSERT_EQ(tokenize("texts.jsonl", "lines.idx").exit_code, 0);
  const std::string expected = read_bytes(folder_ / "lines.bin");
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder_ / "texts")) {
    const std::string name = "texts/" + entry.path().filename().string();
    const ProcessResult result = tokenize(name, "out" + std::to_string(files) + ".idx");
    ASSERT_EQ(result.exit_code, 0) << name << result.err;
    EXPECT_THAT(result.out, HasSubstr(": 5 documents, ")) << name;
    EXPECT_THAT(result.out, HasSubstr("; 2 documents without text left out\n")) << name;
    EXPECT_EQ(read_bytes(folder_ / ("out" + std::to_string(files) + ".bin")), expected) << name;
    ++files;
  }
  EXPECT_EQ(files, 9);
  ASSERT_EQ(tokenize("texts", "all.idx").exit_code, 0);
  const std::string all = read_bytes(folder_ / "all.bin");
  EXPECT_EQ(all.size(), 9 * expected.size());
  // With a file behind them that makes the folder inputs of several pieces.
  std::string lines;
  for (int i = 0; i < 2500; ++i) lines += "{\"text\": \"" + std::string(1000, 'x') + "\"}\n";
  write_bytes(folder_ / "texts/z.jsonl", lines);
  ASSERT_EQ(tokenize("texts", "pieces.idx", {"--processes", "2"}).exit_code, 0);
  const std::string pieces = read_bytes(folder_ / "pieces.bin");
  EXPECT_EQ(pieces.size(), all.size() + 2500 * 1001 * 2);
  EXPECT_TRUE(pieces.starts_with(all));
  ASSERT_EQ(data({"convert", "texts/groups.parquet", "--to", "indexed", "--out", "bytes"}).exit_code, 0);
  ASSERT_EQ(data({"convert", "texts.jsonl", "--to", "indexed", "--out", "bytes_of_lines"}).exit_code, 0);
  EXPECT_EQ(read_bytes(folder_ / "bytes.bin"), read_bytes(folder_ / "bytes_of_lines.bin"));
  EXPECT_EQ(read_bytes(folder_ / "bytes.idx"), read_bytes(folder_ / "bytes_of_lines.idx"));
}

TEST_F(DataArrow, GivesTheConversationsOfTheSameLinesOfJson) {
  write_bytes(folder_ / "tok/chat_template.jinja",
              "{% for m in messages %}{{ m.role }}:{{ m.content if m.content is defined else '-' }}"
              "{% for c in m.calls or [] %}[{{ c.name }},{{ c.x }},{{ c.n }},{{ c.yes }}]{% endfor %}"
              "{% if m.calls is defined %}+{% endif %};{% endfor %}");
  const auto chat = [&](const std::string& input, const std::string& out) {
    return data({"chat", input, "--tokenizer", "tok", "--out", out});
  };
  ASSERT_EQ(chat("chats.jsonl", "lines.idx").exit_code, 0);
  EXPECT_THAT(read_bytes(folder_ / "lines.bin").size(), 2 * std::string("user:ab;assistant:cd;user:e;assistant:-"
                                                                        "[f,1.0,3,True]+;assistant:g+;")
                                                                .size());
  for (const char* name : {"chats/rows.parquet", "chats/sliced.arrow"}) {
    const ProcessResult result = chat(name, "table.idx");
    ASSERT_EQ(result.exit_code, 0) << name << result.err;
    for (const char* extension : {".bin", ".idx", ".loss"}) {
      EXPECT_EQ(read_bytes(folder_ / (std::string("table") + extension)),
                read_bytes(folder_ / (std::string("lines") + extension)))
          << name << extension;
    }
    std::filesystem::remove(folder_ / "table.bin");
    std::filesystem::remove(folder_ / "table.idx");
  }
  EXPECT_THAT(chat("null_chat.parquet", "x.idx").err, HasSubstr("null_chat.parquet: row 1: "));
}

TEST_F(DataArrow, ReadsWhatTheDatasetsLibrarySaves) {
  const ProcessResult result = tokenize("saved/train", "train.bin");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  std::string text;
  const std::string tokens = read_bytes(folder_ / "train.bin");
  for (std::size_t i = 0; i < tokens.size(); i += 2) text += tokens[i + 1] == 0 ? tokens[i] : '|';
  EXPECT_EQ(text, "one|two|");
  EXPECT_THAT(error("saved"), HasSubstr("folder 'saved' holds the splits train, test. Name one: saved/train."));
  // As in the library's cache, without a state.json.
  std::filesystem::rename(folder_ / "saved/test/state.json", folder_ / "test_state.json");
  EXPECT_THAT(tokenize("saved/test", "cache.bin").out, HasSubstr("1 document, 6 tokens"));
  std::filesystem::rename(folder_ / "test_state.json", folder_ / "saved/test/state.json");
  std::filesystem::remove(folder_ / "saved/train/data-00001-of-00002.arrow");
  EXPECT_THAT(error("saved/train"), HasSubstr("saved/train/data-00001-of-00002.arrow: is missing, and "
                                              "saved/train/state.json names it."));
  write_bytes(folder_ / "saved/dataset_dict.json", R"({"splits": ["test"]})");
  EXPECT_THAT(tokenize("saved", "test.bin").out, HasSubstr("1 document, 6 tokens"));
}

TEST_F(DataArrow, NamesColumnsThatAreNotThereOrOfAnotherType) {
  EXPECT_THAT(
      error("texts/groups.parquet", {"--key", "body"}),
      HasSubstr("texts/groups.parquet: has no column \"body\". It has \"id\" (int64), \"text\" (string), \"raw\" "
                "(binary). Name one with --key."));
  EXPECT_THAT(
      error("texts/groups.parquet", {"--key", "raw"}),
      HasSubstr("texts/groups.parquet: column \"raw\" is of type binary, bytes that need not be text; cast it to "
                "string."));
  EXPECT_THAT(
      error("texts/stream.arrow", {"--key", "id"}),
      HasSubstr("texts/stream.arrow: row 1: has no text under \"id\" but a value of type integer. Name the member "
                "with --key."));
}

TEST_F(DataArrow, NamesFilesThatAreDamaged) {
  EXPECT_THAT(error("cut.parquet"), HasSubstr("cut.parquet: is damaged: it has "));
  EXPECT_THAT(error("head.parquet"), HasSubstr("does not end as a Parquet file does."));
  EXPECT_THAT(error("cut.arrow"), StartsWith("capstan: error: cut.arrow: "));
  EXPECT_THAT(error("invalid.arrow"), HasSubstr("invalid.arrow: In column 0: Invalid: Invalid UTF8 sequence"));
  EXPECT_THAT(error("none.parquet"), HasSubstr("none.parquet: cannot be read: No such file or directory."));
  EXPECT_THAT(error("texts.jsonl", {"--from", "parquet"}),
              HasSubstr("texts.jsonl: is neither a Parquet file nor an arrow IPC file or stream."));
}

TEST_F(DataArrow, SaysWhereItLookedForLibarrow) {
  const ProcessResult result =
      data({"tokenize", "texts/groups.parquet", "--tokenizer", "tok", "--end-token", "256", "--out", "x.bin"},
           {.environment = {"CAPSTAN_ARROW_DIR=" + folder_.path().string()}});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("texts/groups.parquet: reading it takes libarrow.so."));
  EXPECT_THAT(result.err, HasSubstr("CAPSTAN_ARROW_DIR: " + folder_.path().string() + ": no such libraries there"));
  EXPECT_THAT(result.err, HasSubstr("from PyPI with pip, and name its folder 'pyarrow' in the environment variable"));
}

TEST_F(DataArrow, TellsHowTheProgramThatReadsEnded) {
  const std::string capstan = copied_capstan(folder_);
  write_bytes(folder_ / "prefix/libexec/capstan-arrow", "#!/bin/sh\necho '{\"text\": \"a\"}'\nkill -SEGV $$\n");
  std::filesystem::permissions(folder_ / "prefix/libexec/capstan-arrow", std::filesystem::perms::owner_all);
  const ProcessResult result = run_process({capstan, "data", "convert", "cut.parquet", "--to", "bytes", "--out", "x"},
                                           {.folder = folder_.path()});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err,
              HasSubstr("cut.parquet: cannot be read: capstan-arrow was killed by SIGSEGV. A damaged file can "
                        "cause that."));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "x"));
}

TEST(DataWithoutArrow, SaysHowToReadParquet) {
  const TemporaryFolder folder;
  write_bytes(folder / "a.parquet", "PAR1");
  const ProcessResult result =
      run_process({copied_capstan(folder), "data", "convert", "a.parquet", "--to", "bytes", "--out", "x"},
                  {.folder = folder.path()});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err,
              HasSubstr("a.parquet: reading it takes " + (folder / "prefix/libexec/capstan-arrow").string() +
                        ", and this Capstan was built without that program. Run 'scripts/setup --arrow' in "
                        "Capstan's sources and build again, or write the rows as JSON lines."));
}

}  // namespace
}  // namespace capstan::cli
