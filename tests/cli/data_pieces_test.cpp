// `capstan data tokenize` and `convert` of inputs of many pieces: processes, kills, and runs that go on.

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <array>
#include <csignal>
#include <cstring>
#include <fstream>
#include <string_view>
#include <thread>

#include "capstan/sdk/indexed_file.hpp"
#include "core/text/json.hpp"
#include "tests/cli/programs.hpp"
#include "tests/support/byte_tokenizer.hpp"

namespace capstan::cli {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

/// Inputs of some MB, which are pieces of 512 KiB.
class DataPieces : public ::testing::Test {
 protected:
  DataPieces() {
    fs::create_directory(folder_ / "tok");
    write_bytes(folder_ / "tok/tokenizer.json", test::byte_tokenizer().dump());
    write_bytes(folder_ / "tok/tokenizer_config.json", R"({"eos_token": "<end>"})");
  }

  /// Lines of words, of all lengths, with characters of two to four bytes.
  static std::string some_lines(std::size_t bytes) {
    constexpr std::array kWords = {"the ",
                                   "rope",
                                   " \xC3\xA9t\xC3\xA9",
                                   " \xE2\x82\xAC"
                                   "5",
                                   "\t12",
                                   ". ",
                                   "a",
                                   "  ",
                                   "\n",
                                   "\n\n",
                                   " drum",
                                   " \xF0\x9F\xA5\x81"};
    std::string text;
    unsigned state = 1;
    while (text.size() < bytes) {
      state = state * 1664525u + 1013904223u;
      text += kWords[(state >> 20) % kWords.size()];
    }
    return text;
  }
  /// `count` documents as lines of JSON, and the bytes of each with the end token behind it.
  static std::string some_rows(int count, std::vector<std::uint16_t>& tokens) {
    std::string rows;
    for (int i = 0; i < count; ++i) {
      const std::string text = "document " + std::to_string(i) + std::string(static_cast<std::size_t>(i % 100), 'x');
      rows += "{\"text\": \"" + text + "\"}\n" + (i % 7 == 0 ? "\n" : "");
      tokens.insert(tokens.end(), text.begin(), text.end());
      tokens.push_back(256);
    }
    return rows;
  }
  static void add_bytes(const std::string& text, std::vector<std::uint16_t>& tokens) {
    for (const char byte : text) tokens.push_back(static_cast<unsigned char>(byte));
    tokens.push_back(256);
  }

  std::vector<std::string> words(const std::vector<std::string>& more) const {
    std::vector<std::string> all = {"data", "tokenize", "--tokenizer", "tok"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  ProcessResult tokenize(const std::vector<std::string>& more) const { return run_capstan(folder_, words(more)); }
  /// With a limit of a file's size in KiB; `before` runs in the shell first.
  ProcessResult tokenize_limited(int kilobytes, const std::string& before, const std::vector<std::string>& more) const {
    std::vector<std::string> command = {
        "bash", "-c", "ulimit -c 0; ulimit -f " + std::to_string(kilobytes) + "; " + before + "exec \"$0\" \"$@\"",
        kCapstan};
    const std::vector<std::string> all = words(more);
    command.insert(command.end(), all.begin(), all.end());
    return run_process(command, {.folder = folder_.path()});
  }
  template <class T = std::uint16_t>
  std::vector<T> tokens(const std::string& name) const {
    const std::string bytes = read_bytes(folder_ / name);
    std::vector<T> out(bytes.size() / sizeof(T));
    std::memcpy(out.data(), bytes.data(), bytes.size());
    return out;
  }
  bool exists(const std::string& name) const { return fs::exists(folder_ / name); }
  /// Waits until a piece is whole, or the process has ended.
  bool wait_for_a_piece(const Process& process, const std::string& parts) const {
    for (;;) {
      std::error_code error;
      for (const fs::directory_entry& entry : fs::directory_iterator(folder_ / parts, error)) {
        if (entry.path().extension() == ".idx") return true;
      }
      siginfo_t ended{};
      if (::waitid(P_PID, static_cast<id_t>(process.pid()), &ended, WEXITED | WNOHANG | WNOWAIT) != 0 ||
          ended.si_pid != 0) {
        return false;
      }
      std::this_thread::yield();
    }
  }

  TemporaryFolder folder_;
};

TEST_F(DataPieces, GiveTheSameBytesForAnyNumberOfProcesses) {
  std::vector<std::uint16_t> expected;
  fs::create_directory(folder_ / "corpus");
  const std::string long_text = some_lines(1'300'000);
  write_bytes(folder_ / "corpus/a.txt", long_text);
  add_bytes(long_text, expected);
  write_bytes(folder_ / "corpus/b.jsonl", some_rows(12'000, expected));
  for (int i = 0; i < 20; ++i) {
    write_bytes(folder_ / ("corpus/c" + std::to_string(10 + i)), std::to_string(i));
    add_bytes(std::to_string(i), expected);
  }
  ASSERT_EQ(tokenize({"corpus", "--out", "three.idx", "--processes", "3"}).exit_code, 0);
  const std::string index = read_bytes(folder_ / "three.idx");
  for (const std::string processes : {"1", "2"}) {
    const ProcessResult result = tokenize({"corpus", "--out", "out.bin", "--processes", processes, "--force"});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr("out.bin: 12,021 documents, "));
    EXPECT_EQ(tokens("out.bin"), expected);
    EXPECT_FALSE(exists("out.bin.parts"));
    ASSERT_EQ(tokenize({"corpus", "--out", "out.idx", "--processes", processes, "--force"}).exit_code, 0);
    EXPECT_EQ(read_bytes(folder_ / "out.idx"), index);
  }
  EXPECT_EQ(tokens("three.bin"), expected);
  const sdk::IndexedRows rows((folder_ / "three").string());
  EXPECT_EQ(rows.rows(), 12'021);
  EXPECT_EQ(rows.size(0), std::ssize(long_text) + 1);
}

TEST_F(DataPieces, CutOneDocumentWhereItsTokensAreThoseOfTheWhole) {
  // Words are split as GPT-2 does, and some are one token; a pipe is read in one piece.
  Json json = test::byte_tokenizer();
  json["pre_tokenizer"]["use_regex"] = true;
  int id = 257;
  for (const char* word : {"th", "the", "dr",
                           "\xC4\xA0"
                           "dr",
                           "um",
                           "\xC4\xA0"
                           "drum",
                           "ro", "pe", "rope"}) {
    json["model"]["vocab"][word] = id++;
  }
  for (const char* merge : {"t h", "th e", "d r", "\xC4\xA0 dr", "u m",
                            "\xC4\xA0"
                            "dr um",
                            "r o", "p e", "ro pe"}) {
    json["model"]["merges"].push_back(merge);
  }
  write_bytes(folder_ / "tok/tokenizer.json", json.dump());
  const std::string text = some_lines(2'300'000);
  write_bytes(folder_ / "a.txt", text);
  ASSERT_EQ(tokenize({"a.txt", "--out", "pieces.bin"}).exit_code, 0);
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  std::vector<std::string> command = words({"pipe", "--out", "whole.bin"});
  command.insert(command.begin(), kCapstan);
  Process process(command, {.folder = folder_.path()});
  std::ofstream(folder_ / "pipe", std::ios::binary) << text;
  ASSERT_EQ(process.wait().exit_code, 0);
  const std::vector<std::uint16_t> whole = tokens("whole.bin");
  EXPECT_LT(whole.size(), text.size() * 9 / 10);
  EXPECT_EQ(tokens("pieces.bin"), whole);
  ASSERT_EQ(tokenize({"a.txt", "--out", "checked.bin", "--verify"}).exit_code, 0);
  EXPECT_EQ(tokens("checked.bin"), whole);
}

TEST_F(DataPieces, ReadALineWithoutASpaceAsOnePiece) {
  // No piece but the first has a place to begin at.
  const std::string text(1'300'000, 'x');
  write_bytes(folder_ / "a.txt", text);
  write_bytes(folder_ / "b.jsonl", "{\"text\": \"" + text + "\"}\n{\"text\": \"y\"}\n");
  ASSERT_EQ(tokenize({"a.txt", "b.jsonl", "--out", "out.bin", "--processes", "2"}).exit_code, 0);
  std::vector<std::uint16_t> expected;
  for (const std::string& one : {text, text, std::string("y")}) add_bytes(one, expected);
  EXPECT_EQ(tokens("out.bin"), expected);
}

TEST_F(DataPieces, GoOnFromWhatAnEndedRunHasDone) {
  const std::string text = some_lines(4'500'000);
  write_bytes(folder_ / "a.txt", text);
  std::vector<std::uint16_t> expected;
  add_bytes(text, expected);
  std::vector<std::string> command = words({"a.txt", "--out", "out.bin", "--processes", "1", "--force"});
  command.insert(command.begin(), kCapstan);
  for (const int signal : {SIGINT, SIGKILL}) {
    Process process(command, {.folder = folder_.path()});
    wait_for_a_piece(process, "out.bin.parts");
    process.send(signal);
    const ProcessResult result = process.wait();
    // On a machine that gives the test no time the command may have been ready first.
    if (result.exit_code == 0) continue;
    EXPECT_FALSE(exists("out.bin"));
    EXPECT_TRUE(exists("out.bin.parts"));
    if (signal == SIGKILL) {
      EXPECT_EQ(result.signal, SIGKILL);
    } else {
      EXPECT_EQ(result.exit_code, 130);
      EXPECT_THAT(result.err, HasSubstr("capstan: interrupted; "));
      EXPECT_THAT(result.err, HasSubstr(" done and kept in 'out.bin.parts': the same command goes on from there"));
    }
    const ProcessResult next = tokenize({"a.txt", "--out", "out.bin", "--force"});
    ASSERT_EQ(next.exit_code, 0);
    EXPECT_THAT(next.err, HasSubstr("out.bin: goes on from "));
    EXPECT_THAT(next.err, HasSubstr(" of 9 pieces that an earlier run has done"));
    EXPECT_EQ(tokens("out.bin"), expected);
    EXPECT_FALSE(exists("out.bin.parts"));
    fs::remove(folder_ / "out.bin");
  }
}

TEST_F(DataPieces, KeepPiecesWhereTheDiskIsFullAndUseThemForNothingElse) {
  const std::string text = some_lines(2'300'000);
  write_bytes(folder_ / "a.txt", text);
  std::vector<std::uint16_t> expected;
  add_bytes(text, expected);
  // A piece takes 1 MiB, and the result 4.6 MB.
  const ProcessResult full = tokenize_limited(2000, "trap '' XFSZ; ", {"a.txt", "--out", "out.bin"});
  EXPECT_EQ(full.exit_code, 1);
  EXPECT_THAT(full.err, HasSubstr("out.bin.part: cannot be written: File too large."));
  EXPECT_THAT(full.err, HasSubstr("5 of 5 pieces are done and kept in 'out.bin.parts': the same command goes on from "
                                  "there"));
  EXPECT_FALSE(exists("out.bin.part"));

  // Killed while the pieces are joined.
  EXPECT_EQ(tokenize_limited(2000, "", {"a.txt", "--out", "out.bin"}).signal, SIGXFSZ);
  const ProcessResult again = tokenize({"a.txt", "--out", "out.bin"});
  EXPECT_THAT(again.err, HasSubstr("out.bin: goes on from 5 of 5 pieces that an earlier run has done"));
  EXPECT_EQ(tokens("out.bin"), expected);
  EXPECT_FALSE(exists("out.bin.parts"));

  // The same sizes, and other tokens: other text, another tokenizer, another option.
  const auto leave_pieces = [&] {
    tokenize_limited(2000, "trap '' XFSZ; ", {"a.txt", "--out", "other.bin", "--force"});
    ASSERT_TRUE(exists("other.bin.parts"));
  };
  const auto expect_anew = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all = {"a.txt", "--out", "other.bin", "--force"};
    all.insert(all.end(), more.begin(), more.end());
    const ProcessResult result = tokenize(all);
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_THAT(result.err, HasSubstr("other.bin.parts: the parts there are of another run, with other inputs, options "
                                      "or tokenizer; they are removed"));
    EXPECT_THAT(result.err, Not(HasSubstr("goes on from")));
  };
  leave_pieces();
  expect_anew({"--special-tokens"});
  leave_pieces();
  write_bytes(folder_ / "a.txt", std::string(text.size(), 'y'));
  expect_anew({});
  EXPECT_EQ(tokens("other.bin")[7], 'y');
  leave_pieces();
  Json json = test::byte_tokenizer();
  json["normalizer"] = Json::parse(R"({"type": "Replace", "pattern": {"String": "y"}, "content": "z"})");
  write_bytes(folder_ / "tok/tokenizer.json", json.dump());
  expect_anew({});
  EXPECT_EQ(tokens("other.bin")[7], 'z');
}

TEST_F(DataPieces, AreNotUsedWithAnotherConfigurationBesideRanks) {
  // A token for each byte in base64, and one that the configuration adds.
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string ranks;
  for (std::size_t byte = 0; byte < 256; ++byte) {
    ranks += std::string{kDigits[byte >> 2], kDigits[(byte & 3) << 4]} + "== " + std::to_string(byte) + "\n";
  }
  fs::remove(folder_ / "tok/tokenizer.json");
  write_bytes(folder_ / "tok/gpt2.tiktoken", ranks);
  const auto add_token = [&](const std::string& content) {
    write_bytes(folder_ / "tok/tokenizer_config.json",
                R"({"added_tokens_decoder": {"300": {"content": ")" + content + R"("}}})");
  };
  write_bytes(folder_ / "a.txt", "rope drum" + some_lines(2'300'000));
  const std::vector<std::string> command = {"a.txt", "--end-token", "none", "--out", "out.bin"};
  add_token("rope");
  tokenize_limited(2000, "trap '' XFSZ; ", command);
  ASSERT_TRUE(exists("out.bin.parts"));
  add_token("drum");
  const ProcessResult result = tokenize(command);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("out.bin.parts: the parts there are of another run"));
  const std::vector<std::uint16_t> found = tokens("out.bin");
  EXPECT_EQ(std::vector<std::uint16_t>(found.begin(), found.begin() + 6),
            (std::vector<std::uint16_t>{'r', 'o', 'p', 'e', ' ', 300}));
}

TEST_F(DataPieces, NameThePieceWhoseProcessEnds) {
  write_bytes(folder_ / "a.txt", some_lines(2'300'000));
  const ProcessResult result = tokenize_limited(500, "", {"a.txt", "--out", "out.bin", "--processes", "2"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("a.txt, bytes 0 to 524,288: its process was killed by SIGXFSZ."));
  EXPECT_FALSE(exists("out.bin.parts"));
}

TEST_F(DataPieces, NameTheFirstMistakeWhateverTheNumberOfProcesses) {
  std::vector<std::uint16_t> unused;
  std::string rows = some_rows(30'000, unused);
  for (const std::string line : {"document 20000", "document 10000"}) {
    rows.replace(rows.find("{\"text\": \"" + line), 1, "[");
  }
  const std::string before = rows.substr(0, rows.find("[\"text\": \"document 10000"));
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  write_bytes(folder_ / "rows.jsonl", rows);
  std::string text = some_lines(2'300'000);
  text[2'000'000] = text[1'500'000] = '\xFF';
  write_bytes(folder_ / "a.txt", text);
  for (const std::string processes : {"1", "4"}) {
    const ProcessResult bad_row = tokenize({"rows.jsonl", "--out", "out.bin", "--processes", processes});
    EXPECT_EQ(bad_row.exit_code, 1);
    EXPECT_THAT(bad_row.err, HasSubstr("rows.jsonl:" + std::to_string(line) + ": JSON, line 1, column"));
    EXPECT_THAT(tokenize({"a.txt", "--out", "out.bin", "--processes", processes}).err,
                HasSubstr("a.txt: byte 1,500,000 is not UTF-8."));
  }
  EXPECT_FALSE(exists("out.bin"));
  EXPECT_THAT(tokenize({"a.txt", "--out", "out.bin", "--processes", "0"}).err,
              HasSubstr("--processes: must be 1 to 1,024, got 0."));
}

TEST_F(DataPieces, NameTheFileWhoseTextATokenizerRefuses) {
  Json json = test::byte_tokenizer();
  json["model"] = Json::parse(R"({"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "<none>"})");
  write_bytes(folder_ / "tok/tokenizer.json", json.dump());
  write_bytes(folder_ / "c.txt", "abc");
  EXPECT_THAT(tokenize({"c.txt", "--out", "out.bin"}).err, HasSubstr("c.txt: 'abc' has no token, and "));
}

TEST_F(DataPieces, ConvertInPiecesAndGoOn) {
  // Documents end at token 9; the last has no end.
  std::vector<std::uint16_t> all;
  unsigned state = 1;
  for (int i = 0; i < 1'200'000; ++i) {
    state = state * 1664525u + 1013904223u;
    all.push_back(static_cast<std::uint16_t>((state >> 20) % 1000));
  }
  all.back() = 10;
  const std::string bytes(reinterpret_cast<const char*>(all.data()), all.size() * 2);
  write_bytes(folder_ / "in.bin", bytes);
  const auto convert = [&](const std::vector<std::string>& more) {
    std::vector<std::string> command = {"data", "convert", "--end-token", "9"};
    command.insert(command.end(), more.begin(), more.end());
    return command;
  };
  for (const std::string processes : {"1", "2"}) {
    ASSERT_EQ(run_capstan(folder_,
                          convert({"in.bin", "--to", "indexed", "--out", "docs", "--processes", processes, "--force"}))
                  .exit_code,
              0);
    const sdk::IndexedRows rows((folder_ / "docs").string());
    std::vector<std::int64_t> document;
    std::int64_t row = 0;
    for (std::size_t i = 0; i < all.size(); ++i) {
      document.push_back(all[i]);
      if (all[i] != 9 && i + 1 < all.size()) continue;
      ASSERT_EQ(rows.row(row), document) << row;
      document.clear();
      ++row;
    }
    EXPECT_EQ(rows.rows(), row);
    EXPECT_EQ(rows.documents(), row + 1);
  }
  ASSERT_EQ(run_capstan(folder_, {"data", "convert", "docs", "--to", "uint16", "--out", "back.bin"}).exit_code, 0);
  EXPECT_EQ(read_bytes(folder_ / "back.bin"), bytes);

  std::vector<std::string> command = {"bash", "-c", "ulimit -c 0; ulimit -f 2000; exec \"$0\" \"$@\"", kCapstan};
  const std::vector<std::string> wide = {"data", "convert", "docs", "--to", "uint32", "--out", "wide.bin"};
  command.insert(command.end(), wide.begin(), wide.end());
  EXPECT_EQ(run_process(command, {.folder = folder_.path()}).signal, SIGXFSZ);
  EXPECT_TRUE(exists("wide.bin.parts"));
  const ProcessResult again = run_capstan(folder_, wide);
  EXPECT_THAT(again.err, HasSubstr("wide.bin: goes on from 5 of 5 pieces that an earlier run has done"));
  EXPECT_EQ(tokens<std::uint32_t>("wide.bin"), std::vector<std::uint32_t>(all.begin(), all.end()));
  EXPECT_FALSE(exists("wide.bin.parts"));
}

TEST_F(DataPieces, LeaveUnfinishedResultsOutOfFolders) {
  fs::create_directories(folder_ / "corpus/out.bin.parts");
  write_bytes(folder_ / "corpus/a.txt", "a");
  write_bytes(folder_ / "corpus/out.bin.part", "of a killed run");
  write_bytes(folder_ / "corpus/out.bin.parts/0123456789abcdef-000000.bin", "of a killed run");
  write_bytes(folder_ / "corpus/out.rows.part", "of a killed run");
  fs::create_directory(folder_ / "corpus/books.parts");
  write_bytes(folder_ / "corpus/books.parts/b.txt", "b");
  ASSERT_EQ(tokenize({"corpus", "--out", "out.bin"}).exit_code, 0);
  EXPECT_EQ(tokens("out.bin"), (std::vector<std::uint16_t>{'a', 256, 'b', 256}));
}

TEST_F(DataPieces, LeaveFilesOfOthersInTheirFolder) {
  fs::create_directory(folder_ / "out.bin.parts");
  write_bytes(folder_ / "out.bin.parts/a.txt", "of somebody else");
  write_bytes(folder_ / "a.txt", some_lines(2'300'000));
  ASSERT_EQ(tokenize({"a.txt", "--out", "out.bin"}).exit_code, 0);
  EXPECT_EQ(read_bytes(folder_ / "out.bin.parts/a.txt"), "of somebody else");
  fs::remove(folder_ / "out.bin.parts/a.txt");
  EXPECT_TRUE(fs::is_empty(folder_ / "out.bin.parts"));
}

TEST_F(DataPieces, ReadADescriptorInOneGo) {
  const std::string text = some_lines(2'300'000);
  write_bytes(folder_ / "a.txt", text);
  std::vector<std::string> command = {"bash", "-c", "exec \"$0\" \"$@\" 3< a.txt", kCapstan};
  const std::vector<std::string> all = words({"/dev/fd/3", "--out", "out.bin", "--processes", "2"});
  command.insert(command.end(), all.begin(), all.end());
  const ProcessResult result = run_process(command, {.folder = folder_.path()});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  std::vector<std::uint16_t> expected;
  add_bytes(text, expected);
  EXPECT_EQ(tokens("out.bin"), expected);
}

TEST_F(DataPieces, ReadTokensAsTheirRecordSays) {
  Json json = test::byte_tokenizer();
  json["added_tokens"].push_back(Json::parse(R"({"id": 70000, "content": "<far>"})"));
  write_bytes(folder_ / "tok/tokenizer.json", json.dump());
  write_bytes(folder_ / "a.txt", "a<far>");
  ASSERT_EQ(tokenize({"a.txt", "--out", "a.bin"}).exit_code, 0);
  const Json shown = Json::parse(run_capstan(folder_, {"data", "show", "a.bin", "--json"}).out);
  EXPECT_EQ(shown.at("format"), Json("uint32"));
  EXPECT_EQ(shown.at("tokens"), Json(3));
  EXPECT_EQ(shown.at("largest token"), Json(70000));
  ASSERT_EQ(run_capstan(folder_, {"data", "convert", "a.bin", "--to", "indexed", "--out", "b"}).exit_code, 0);
  EXPECT_EQ(sdk::IndexedRows((folder_ / "b").string()).row(0), (std::vector<std::int64_t>{'a', 70000, 256}));
}

TEST_F(DataPieces, RemoveWhatBelongsToTheTokensThatAConversionReplaces) {
  write_bytes(folder_ / "a.txt", "a");
  ASSERT_EQ(tokenize({"a.txt", "--out", "b.idx"}).exit_code, 0);
  write_bytes(folder_ / "b.loss", "1");
  ASSERT_TRUE(exists("b.idx.json"));
  ASSERT_EQ(run_capstan(folder_, {"data", "convert", "a.txt", "--to", "indexed", "--out", "b", "--force"}).exit_code,
            0);
  EXPECT_FALSE(exists("b.idx.json"));
  EXPECT_FALSE(exists("b.loss"));
  ASSERT_EQ(tokenize({"a.txt", "--out", "c.bin"}).exit_code, 0);
  ASSERT_EQ(run_capstan(folder_, {"data", "convert", "a.txt", "--to", "uint32", "--out", "c.bin", "--force"}).exit_code,
            0);
  EXPECT_FALSE(exists("c.bin.json"));
}

}  // namespace
}  // namespace capstan::cli
