// `capstan data`: files of tokens from one kind to another, and back.

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <future>

#include "capstan/sdk/indexed_file.hpp"
#include "tests/cli/programs.hpp"

namespace capstan::cli {
namespace {

using sdk::IndexedRows;
using sdk::IndexedType;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Tokens = std::vector<std::int64_t>;

class DataCommands : public ::testing::Test {
 protected:
  ProcessResult data(std::vector<std::string> words) const {
    words.insert(words.begin(), "data");
    return run_capstan(folder_, words);
  }
  ProcessResult convert(std::vector<std::string> words) const {
    words.insert(words.begin(), "convert");
    return data(words);
  }
  template <class T>
  void write_tokens(const std::string& name, const std::vector<T>& tokens) const {
    write_bytes(folder_ / name, {reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof(T)});
  }
  template <class T>
  std::vector<T> tokens(const std::string& name) const {
    const std::string bytes = read_bytes(folder_ / name);
    std::vector<T> out(bytes.size() / sizeof(T));
    std::memcpy(out.data(), bytes.data(), bytes.size());
    return out;
  }
  IndexedRows rows(const std::string& name) const { return IndexedRows((folder_ / name).string()); }
  std::string error(const std::vector<std::string>& words) const {
    const ProcessResult result = convert(words);
    EXPECT_NE(result.exit_code, 0);
    return result.err;
  }

  TemporaryFolder folder_;
};

TEST_F(DataCommands, TakeTheFilesOfFoldersByName) {
  std::filesystem::create_directories(folder_ / "corpus/b");
  write_bytes(folder_ / "corpus/c.txt", "xyz");
  write_bytes(folder_ / "corpus/a.txt", "ab");
  write_bytes(folder_ / "corpus/b/d.txt", "m");
  write_bytes(folder_ / "corpus/.hidden", "h");
  write_bytes(folder_ / "corpus/empty.txt", "");
  std::filesystem::create_directory_symlink("..", folder_ / "corpus/b/up");  // a circle
  const ProcessResult result = convert({"corpus", "--to", "indexed", "--out", "text"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "text: 3 documents, 6 tokens\n");
  EXPECT_THAT(rows("text").row(0), ElementsAre('a', 'b'));
  EXPECT_THAT(rows("text").row(1), ElementsAre('m'));
  EXPECT_THAT(rows("text").row(2), ElementsAre('x', 'y', 'z'));
  // A pair is one input.
  std::filesystem::create_directory(folder_ / "pairs");
  ASSERT_EQ(convert({"corpus", "--to", "indexed", "--out", "pairs/text"}).exit_code, 0);
  EXPECT_EQ(convert({"pairs", "--to", "indexed", "--out", "again"}).out, "again: 3 documents, 6 tokens\n");
  std::filesystem::create_directory(folder_ / "none");
  EXPECT_THAT(error({"none", "--to", "indexed", "--out", "x"}),
              HasSubstr("folder 'none' holds no file with anything in it."));
}

TEST_F(DataCommands, WriteEachFileOfTextAsADocument) {
  write_bytes(folder_ / "a.txt", "ab");
  write_bytes(folder_ / "b.txt", "xyz");
  const ProcessResult result = convert({"a.txt", "b.txt", "--to", "indexed", "--out", "text"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "text: 2 documents, 5 tokens\n");
  const IndexedRows found = rows("text");
  found.check();
  EXPECT_EQ(found.type(), IndexedType::kU8);
  EXPECT_THAT(found.row(0), ElementsAre('a', 'b'));
  EXPECT_THAT(found.row(1), ElementsAre('x', 'y', 'z'));
  EXPECT_EQ(found.documents(), 3);

  ASSERT_EQ(convert({"text.idx", "--to", "bytes", "--out", "back"}).exit_code, 0);
  EXPECT_EQ(read_bytes(folder_ / "back"), "abxyz");
}

TEST_F(DataCommands, TakeDocumentsFromLinesOfJson) {
  write_bytes(folder_ / "d.jsonl", "{\"text\": \"a\\n\", \"id\": 1}\n\n{\"body\": \"no\", \"text\": \"\\u00e4\"}\n");
  ASSERT_EQ(convert({"d.jsonl", "--to", "indexed", "--out", "d"}).exit_code, 0);
  EXPECT_THAT(rows("d").row(0), ElementsAre('a', '\n'));
  EXPECT_THAT(rows("d").row(1), ElementsAre(0xC3, 0xA4));
  EXPECT_THAT(error({"d.jsonl", "--key", "body", "--to", "indexed", "--out", "e"}),
              HasSubstr("d.jsonl:1: has no text under \"body\". Name the member with --key."));
  write_bytes(folder_ / "bad.jsonl", "{\"text\": \"a\"}\n{\"text\": \n");
  EXPECT_THAT(error({"bad.jsonl", "--to", "indexed", "--out", "e"}), HasSubstr("bad.jsonl:2: "));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "e.bin"));
}

TEST_F(DataCommands, EndDocumentsAtATokenAndPutItBack) {
  write_tokens<std::uint16_t>("t.bin", {5, 6, 50256, 7, 50256, 8});
  ASSERT_EQ(convert({"t.bin", "--end-token", "50256", "--to", "indexed", "--out", "i"}).exit_code, 0);
  const IndexedRows found = rows("i");
  EXPECT_EQ(found.type(), IndexedType::kU16);
  ASSERT_EQ(found.rows(), 3);
  EXPECT_THAT(found.row(0), ElementsAre(5, 6, 50256));
  EXPECT_THAT(found.row(1), ElementsAre(7, 50256));
  EXPECT_THAT(found.row(2), ElementsAre(8));
  EXPECT_EQ(read_bytes(folder_ / "i.idx")[17], 8);  // Megatron's uint16

  ASSERT_EQ(convert({"i", "--end-token", "50256", "--to", "uint32", "--out", "u.bin"}).exit_code, 0);
  EXPECT_THAT(tokens<std::uint32_t>("u.bin"), ElementsAre(5, 6, 50256, 7, 50256, 8, 50256));
}

TEST_F(DataCommands, NumberTypesAsEitherWorldDoes) {
  write_tokens<std::uint32_t>("t.bin", {1, 70000});
  ASSERT_EQ(convert({"t.bin", "--from", "uint32", "--to", "indexed", "--out", "m"}).exit_code, 0);
  EXPECT_EQ(rows("m").type(), IndexedType::kI32);
  ASSERT_EQ(convert({"m.idx", "--to", "indexed", "--numbering", "deepspeed", "--out", "n"}).exit_code, 0);
  EXPECT_EQ(read_bytes(folder_ / "n.idx")[17], 4);
  ASSERT_EQ(
      convert({"t.bin", "--from", "uint32", "--to", "indexed", "--numbering", "deepspeed", "--out", "d"}).exit_code, 0);
  EXPECT_EQ(rows("d").type(), IndexedType::kU32);
  EXPECT_EQ(read_bytes(folder_ / "d.idx")[17], 7);
}

TEST_F(DataCommands, ReadTheHeaderOfLlmC) {
  std::vector<std::int32_t> file(256 + 3);
  file[0] = 20240801;
  file[1] = 1;
  file[2] = 3;
  for (int i = 0; i < 3; ++i) file[static_cast<std::size_t>(256 + i)] = 100000 + i;
  write_tokens("llm.bin", file);
  ASSERT_EQ(convert({"llm.bin", "--to", "indexed", "--out", "i"}).exit_code, 0);
  EXPECT_THAT(rows("i").row(0), ElementsAre(100000, 100001, 100002));
  EXPECT_THAT(error({"llm.bin", "--from", "uint16", "--to", "indexed", "--out", "j"}),
              HasSubstr("llm.bin: has llm.c's header of 32-bit tokens, and is read as tokens of 16 bits."));
}

TEST_F(DataCommands, SayWhatCannotBeDoneAndLeaveNothing) {
  write_tokens<std::uint32_t>("big.bin", {1, 70000});
  EXPECT_THAT(error({"big.bin", "--from", "uint32", "--to", "uint16", "--out", "o.bin"}),
              HasSubstr("o.bin: document 0 has token 70000, for which uint16 has no room."));
  write_tokens<std::uint32_t>("huge.bin", {3000000000});
  EXPECT_THAT(error({"huge.bin", "--from", "uint32", "--to", "indexed", "--out", "o"}),
              HasSubstr("o: document 0 has token 3000000000, for which int32 has no room."));
  write_bytes(folder_ / "odd.bin", "abc");
  EXPECT_THAT(error({"odd.bin", "--to", "uint32", "--out", "o.bin"}),
              HasSubstr("odd.bin: has 3 bytes, which is no whole number of 16-bit tokens."));
  EXPECT_THAT(error({"none.txt", "--to", "uint16", "--out", "o.bin"}),
              HasSubstr("'none.txt': No such file or directory."));
  write_bytes(folder_ / "empty.txt", "");
  EXPECT_THAT(error({"empty.txt", "--to", "uint16", "--out", "o.bin"}), HasSubstr("the inputs hold no token."));
  EXPECT_THAT(error({"big.bin", "--to", "uint16", "--out", "nowhere/o.bin"}),
              HasSubstr("nowhere/o.bin.part: cannot be created: No such file or directory."));
  for (const char* name : {"o.bin", "o.bin.part", "o.idx"})
    EXPECT_FALSE(std::filesystem::exists(folder_ / name)) << name;

  write_bytes(folder_ / "there", "kept");
  write_bytes(folder_ / "a.txt", "ab");
  EXPECT_THAT(error({"a.txt", "--to", "uint16", "--out", "there"}),
              HasSubstr("--out: 'there' exists. Choose another name, or replace it with --force."));
  EXPECT_THAT(error({"a.txt", "--to", "uint16", "--out", "a.txt", "--force"}),
              HasSubstr("--out: 'a.txt' is what is read. Choose another name."));
  EXPECT_EQ(read_bytes(folder_ / "there"), "kept");
  EXPECT_EQ(convert({"a.txt", "--to", "uint16", "--out", "there", "--force"}).exit_code, 0);
  EXPECT_THAT(error({"a.txt", "--to", "uint8", "--out", "x"}),
              HasSubstr("--to: must be bytes|uint16|uint32|indexed, got 'uint8'."));
}

TEST_F(DataCommands, LeaveNothingWhenInterrupted) {
  write_bytes(folder_ / "long.txt", "");
  std::filesystem::resize_file(folder_ / "long.txt", std::uintmax_t{4} << 30);  // no byte of it is on the disk
  Process process({kCapstan, "data", "convert", "long.txt", "--to", "bytes", "--out", "copy"},
                  {.folder = folder_.path()});
  while (!std::filesystem::exists(folder_ / "copy.part")) ::usleep(1000);
  process.send(SIGINT);
  const ProcessResult result = process.wait();
  EXPECT_EQ(result.exit_code, 130);
  EXPECT_EQ(result.err, "capstan: interrupted; nothing was written\n");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "copy"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "copy.part"));
}

TEST_F(DataCommands, LeaveAFileToTheProcessThatWritesIt) {
  write_bytes(folder_ / "a.txt", "ab");
  {
    sdk::IndexedWriter other((folder_ / "text").string(), IndexedType::kU8);
    for (const char* force : {"", "--force"}) {
      std::vector<std::string> words = {"a.txt", "--to", "indexed", "--out", "text"};
      if (*force != '\0') words.emplace_back(force);
      EXPECT_EQ(error(words),
                "capstan: error: text.idx.part: another process is writing 'text.idx'. Wait until it has ended, or "
                "choose another name.\n");
    }
    other.append(std::array<std::int64_t, 2>{7, 8});
    other.end_row();
    other.end_document();
    other.finish();
  }
  EXPECT_THAT(rows("text").row(0), ElementsAre(7, 8));
  EXPECT_THAT(error({"a.txt", "--to", "indexed", "--out", "text"}), HasSubstr("--out: 'text.bin' exists."));
  EXPECT_EQ(convert({"a.txt", "--to", "indexed", "--out", "text", "--force"}).exit_code, 0);
  EXPECT_THAT(rows("text").row(0), ElementsAre('a', 'b'));
}

TEST_F(DataCommands, SayThatTheDiskIsFull) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  write_bytes(folder_ / "a.txt", std::string(10000, 'a'));
  std::filesystem::create_symlink("/dev/full", folder_ / "o.bin.part");
  EXPECT_THAT(error({"a.txt", "--to", "uint16", "--out", "o.bin"}),
              HasSubstr("o.bin.part: cannot be written: No space left on device."));
}

TEST_F(DataCommands, LeaveDevicesPipesAndLinksAsTheyAre) {
  write_bytes(folder_ / "a.txt", "abc");
  // A device of one's own: /dev/null is missed by others.
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  auto piped = std::async(std::launch::async, [&] { return read_bytes(folder_ / "pipe"); });
  const ProcessResult into_pipe = convert({"a.txt", "--to", "bytes", "--out", "pipe", "--force"});
  ASSERT_EQ(into_pipe.exit_code, 0) << into_pipe.err;
  EXPECT_EQ(piped.get(), "abc");
  EXPECT_TRUE(std::filesystem::is_fifo(folder_ / "pipe"));
  EXPECT_EQ(into_pipe.out, "");
  EXPECT_THAT(into_pipe.err, HasSubstr("pipe: 1 document, 3 tokens"));
  EXPECT_THAT(
      error({"a.txt", "--to", "indexed", "--out", "pipe"}),
      HasSubstr("--out: 'pipe' is a device or a pipe, and --to indexed writes two files, NAME.bin and NAME.idx. "
                "Give a name for them."));

  std::filesystem::create_symlink("/dev/full", folder_ / "full");
  EXPECT_THAT(error({"a.txt", "--to", "bytes", "--out", "full"}),
              HasSubstr("full: cannot be written: No space left on device."));
  EXPECT_TRUE(std::filesystem::is_symlink(folder_ / "full"));
  EXPECT_EQ(convert({"a.txt", "--to", "bytes", "--out", "/dev/stdout"}).out, "abc");

  write_bytes(folder_ / "target", "old");
  std::filesystem::create_symlink("target", folder_ / "link");
  EXPECT_EQ(convert({"a.txt", "--to", "bytes", "--out", "link", "--force"}).exit_code, 0);
  EXPECT_EQ(read_bytes(folder_ / "target"), "abc");
  EXPECT_TRUE(std::filesystem::is_symlink(folder_ / "link"));
  std::filesystem::create_directory(folder_ / "folder");
  EXPECT_THAT(error({"a.txt", "--to", "bytes", "--out", "folder", "--force"}),
              HasSubstr("'folder' cannot be written: it is a folder. Name a file."));
}

TEST_F(DataCommands, ShowWhatAFileHolds) {
  write_tokens<std::uint16_t>("t.bin", {5, 6, 50256, 7, 50256, 8});
  ASSERT_EQ(convert({"t.bin", "--end-token", "50256", "--to", "indexed", "--out", "i"}).exit_code, 0);
  EXPECT_EQ(data({"show", "i.idx", "--json"}).out,
            "{\"format\":\"indexed\",\"type\":\"uint16 (8, as Megatron numbers types)\",\"rows\":3,\"shortest row\":1,"
            "\"longest row\":3,\"documents\":3,\"tokens\":6,\"smallest token\":5,\"largest token\":50256}\n");
  EXPECT_THAT(data({"show", "t.bin"}).out, HasSubstr("uint16"));
  EXPECT_THAT(data({"show", "t.bin", "--from", "bytes"}).out, HasSubstr("12"));
  std::filesystem::resize_file(folder_ / "i.bin", 8);
  const ProcessResult damaged = data({"show", "i"});
  EXPECT_EQ(damaged.exit_code, 1);
  EXPECT_THAT(damaged.err, HasSubstr("i.bin: has 8 bytes, and "));
}

}  // namespace
}  // namespace capstan::cli
