// `capstan data show --rows`: the text of rows, with what the loss counts.

#include <gmock/gmock.h>

#include "capstan/sdk/packed_rows.hpp"
#include "core/text/json.hpp"
#include "tests/cli/programs.hpp"
#include "tests/support/byte_tokenizer.hpp"

namespace capstan::cli {
namespace {

using ::testing::HasSubstr;

class DataShow : public ::testing::Test {
 protected:
  DataShow() {
    std::filesystem::create_directory(folder_ / "tok");
    write_bytes(folder_ / "tok/tokenizer.json", test::byte_tokenizer().dump());
    write_bytes(folder_ / "tok/chat_template.jinja",
                "{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}"
                "{% if add_generation_prompt %}a:{% endif %}");
    write_bytes(folder_ / "chats.jsonl",
                R"({"messages": [{"role": "user", "content": "ab"}, {"role": "assistant", "content": "cd"}]})"
                "\n"
                R"({"messages": [{"role": "assistant", "content": "\u001b[2Jé"}]})"
                "\n");
    run_capstan(folder_, {"data", "chat", "chats.jsonl", "--tokenizer", "tok", "--out", "chats.idx"});
  }

  ProcessResult show(std::vector<std::string> words, ProcessOptions options = {}) const {
    words.insert(words.begin(), {"data", "show"});
    return run_capstan(folder_, words, options);
  }

  TemporaryFolder folder_;
};

TEST_F(DataShow, PutsWhatTheLossCountsBetweenBrackets) {
  EXPECT_EQ(show({"chats.idx", "--rows", "5"}).out,
            "row 0: 10 tokens, 3 in the loss\n"
            "u:ab;a:⟦cd;⟧\n"
            "row 1: 9 tokens, 7 in the loss\n"
            "a:⟦\\x1b[2Jé;⟧\n");
  EXPECT_EQ(show({"chats", "--rows", "1", "--first", "1", "--tokens", "3"}).out,
            "row 1: 9 tokens, 7 in the loss\na:⟦\\x1b⟧\n... and 6 more tokens\n");
}

TEST_F(DataShow, ColoursWhatTheLossCountsOnATerminal) {
  const ProcessResult green =
      show({"chats.idx", "--rows", "1"}, {.environment = {"TERM=xterm", "NO_COLOR="}, .terminal = true});
  EXPECT_THAT(green.out, HasSubstr("u:ab;a:\x1b[32mcd;\x1b[0m"));
  const ProcessResult plain =
      show({"chats.idx", "--rows", "1"}, {.environment = {"TERM=xterm", "NO_COLOR=1"}, .terminal = true});
  EXPECT_THAT(plain.out, HasSubstr("u:ab;a:⟦cd;⟧"));
}

TEST_F(DataShow, TellsTheDocumentsOfARowApart) {
  sdk::PackedRowsWriter rows((folder_ / "chats").string(), 32);
  rows.append(2);
  rows.finish();
  EXPECT_EQ(show({"chats.idx", "--rows", "1"}).out,
            "row 0, document 0: 10 tokens, 3 in the loss\n"
            "u:ab;a:⟦cd;⟧\n"
            "row 0, document 1: 9 tokens, 7 in the loss\n"
            "a:⟦\\x1b[2Jé;⟧\n");
  const Json facts = Json::parse(show({"chats.idx", "--json"}).out);
  EXPECT_EQ(facts.at("packed rows"), Json(1));
  EXPECT_EQ(facts.at("tokens of a packed row"), Json(32));
  EXPECT_EQ(facts.at("tokens in the loss"), Json(10));
}

TEST_F(DataShow, TakesTheTokenizerOfTheRecordWhereItIsTheOneThatMadeTheTokens) {
  write_bytes(folder_ / "a.jsonl", "{\"text\": \"ab\"}\n{\"text\": \"c\"}\n");
  run_capstan(folder_, {"data", "tokenize", "a.jsonl", "--tokenizer", "tok", "--end-token", "<end>", "--out", "a.bin"});
  EXPECT_EQ(show({"a.bin", "--rows", "2"}).out, "row 0: 3 tokens\nab<end>\nrow 1: 2 tokens\nc<end>\n");
  const auto documents = [&](std::vector<std::string> words) {
    words.insert(words.begin(), {"a.bin", "--json"});
    return Json::parse(show(words).out).at("documents");
  };
  EXPECT_EQ(documents({}), Json(2));
  EXPECT_EQ(documents({"--end-token", "1000"}), Json(1));
  Json other = test::byte_tokenizer();
  other["version"] = "2.0";
  write_bytes(folder_ / "tok/tokenizer.json", other.dump());
  const ProcessResult numbers = show({"a.bin", "--rows", "1"});
  EXPECT_EQ(numbers.out, "row 0: 3 tokens\n97 98 256\n");
  EXPECT_THAT(numbers.err, HasSubstr("numbers are shown, as tokenizer tok/tokenizer.json, which the record of a.bin "
                                     "names, has other bytes since; name one with --tokenizer"));
  EXPECT_EQ(show({"a.bin", "--rows", "1", "--tokenizer", "tok"}).out, "row 0: 3 tokens\nab<end>\n");
  std::filesystem::remove(folder_ / "a.bin.json");
  EXPECT_EQ(show({"a.bin", "--rows", "1", "--tokenizer", "tok", "--end-token", "98"}).out, "row 0: 2 tokens\nab\n");
}

TEST_F(DataShow, ShowsRowsOfText) {
  write_bytes(folder_ / "a.txt", "line\nof text");
  write_bytes(folder_ / "a.txt.json", "[1]");  // not a record, as a text has none
  EXPECT_EQ(show({"a.txt", "--rows", "1", "--tokens", "7"}).out, "row 0: 12 bytes\nline\nof\n... and 5 more bytes\n");
  write_bytes(folder_ / "a.jsonl", "{\"text\": \"a\\u0085é\"}\n{\"text\": \"c\"}\n");
  EXPECT_EQ(show({"a.jsonl", "--rows", "1"}).out, "row 0: 5 bytes\na\\x85é\n");
}

TEST_F(DataShow, NamesWhatIsWrong) {
  const ProcessResult beyond = show({"chats.idx", "--rows", "1", "--first", "2"});
  EXPECT_EQ(beyond.exit_code, 1);
  EXPECT_THAT(beyond.err, HasSubstr("--first: chats.idx has 2 rows, numbered from 0; got 2."));
  const ProcessResult both = show({"chats.idx", "--rows", "1", "--json"});
  EXPECT_EQ(both.exit_code, 2);
  EXPECT_THAT(both.err, HasSubstr("--json: prints the facts of a file, and --rows prints its text."));
  const std::vector<std::vector<std::string>> of_rows = {{"--first", "1"}, {"--tokens", "3"}, {"--tokenizer", "tok"}};
  for (const std::vector<std::string>& option : of_rows) {
    const ProcessResult result = show({"chats.idx", option[0], option[1]});
    EXPECT_EQ(result.exit_code, 2) << option[0];
    EXPECT_THAT(result.err, HasSubstr(option[0] + ": acts on the text of rows, and without --rows"));
  }
  write_bytes(folder_ / "chats.idx.json", R"({"format": 3})");
  EXPECT_THAT(show({"chats.idx", "--rows", "1"}).err,
              HasSubstr("chats.idx.json: \"format\" is not as 'capstan data' writes it."));
  EXPECT_THAT(show({"none.idx", "--rows", "1"}).err, HasSubstr("none.idx"));
}

}  // namespace
}  // namespace capstan::cli
