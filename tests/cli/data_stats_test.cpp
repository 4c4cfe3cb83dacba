// `capstan data stats`: counts of documents, against numbers that are worked out by hand or from the lengths.

#include <gmock/gmock.h>

#include <algorithm>

#include "capstan/sdk/indexed_file.hpp"
#include "capstan/sdk/packed_rows.hpp"
#include "core/text/json.hpp"
#include "tests/cli/programs.hpp"
#include "tests/support/byte_tokenizer.hpp"

namespace capstan::cli {
namespace {

using ::testing::HasSubstr;

class DataStats : public ::testing::Test {
 protected:
  ProcessResult stats(std::vector<std::string> words) const {
    words.insert(words.begin(), {"data", "stats"});
    return run_capstan(folder_, words);
  }
  Json json(std::vector<std::string> words) const {
    words.emplace_back("--json");
    const ProcessResult result = stats(words);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return Json::parse(result.out);
  }
  std::string error(const std::vector<std::string>& words, int exit_code) const {
    const ProcessResult result = stats(words);
    EXPECT_EQ(result.exit_code, exit_code) << result.out;
    return result.err;
  }
  /// NAME.idx and NAME.bin with documents of these lengths.
  void write_index(const std::string& name, const std::vector<std::int64_t>& lengths) const {
    sdk::IndexedWriter writer((folder_ / name).string(), sdk::IndexedType::kU16);
    for (const std::int64_t length : lengths) {
      writer.append(std::vector<std::int64_t>(static_cast<std::size_t>(length), 7));
      writer.end_row();
      writer.end_document();
    }
    writer.finish();
  }
  void write_chats() const {
    std::filesystem::create_directory(folder_ / "tok");
    write_bytes(folder_ / "tok/tokenizer.json", test::byte_tokenizer().dump());
    write_bytes(folder_ / "tok/chat_template.jinja",
                "{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}"
                "{% if add_generation_prompt %}a:{% endif %}");
    write_bytes(folder_ / "chats.jsonl",
                R"({"messages": [{"role": "user", "content": "abcd"}, {"role": "assistant", "content": "ef"}]})"
                "\n"
                R"({"messages": [{"role": "user", "content": "g"}]})"
                "\n"
                R"({"messages": [{"role": "assistant", "content": "hij"}]})"
                "\n");
  }

  TemporaryFolder folder_;
};

TEST_F(DataStats, CountLengthsAsTheirDefinitionsSay) {
  std::vector<std::int64_t> lengths;
  for (std::int64_t i = 0; i < 150; ++i) lengths.push_back(1 + i * i * 31 % 97 + (i % 50 == 0 ? 700 : 0));
  write_index("a", {lengths.begin(), lengths.begin() + 70});
  write_index("b", {lengths.begin() + 70, lengths.end()});
  const Json found = json({"a.idx", "b"});
  std::sort(lengths.begin(), lengths.end());
  std::int64_t total = 0;
  for (const std::int64_t length : lengths) total += length;
  EXPECT_EQ(found.at("unit"), Json("token"));
  EXPECT_EQ(found.at("documents"), Json(150));
  EXPECT_EQ(found.at("tokens"), Json(total));
  const Json& length = found.at("length");
  EXPECT_EQ(length.at("min"), Json(lengths.front()));
  EXPECT_EQ(length.at("max"), Json(lengths.back()));
  EXPECT_DOUBLE_EQ(length.at("mean").as_number(), static_cast<double>(total) / 150);
  EXPECT_DOUBLE_EQ(length.at("median").as_number(), static_cast<double>(lengths[74] + lengths[75]) / 2);
  EXPECT_EQ(length.at("p95"), Json(lengths[142]));  // 143 of 150 are 95.3 %, 142 are 94.7 %
  std::int64_t in_bars = 0, next = 1;
  for (const Json& bar : found.at("histogram").as_array()) {
    const std::int64_t from = bar.at("from").as_integer(), to = bar.at("to").as_integer();
    EXPECT_EQ(from, next);
    EXPECT_EQ(to, 2 * from - 1);
    EXPECT_EQ(bar.at("documents").as_integer(),
              std::count_if(lengths.begin(), lengths.end(), [&](auto one) { return one >= from && one <= to; }));
    in_bars += bar.at("documents").as_integer();
    next = to + 1;
  }
  EXPECT_EQ(in_bars, 150);
}

TEST_F(DataStats, TellWhatPackingSaves) {
  write_index("a", {6, 3, 12, 4, 1, 6});
  // Sorted: 12 (cut to 10), 6 and 4, 6 and 3 and 1: three rows of 10, which are full.
  const Json packing = json({"a", "--seq", "10"}).at("packing");
  EXPECT_EQ(packing.at("rows_packed"), Json(3));
  EXPECT_DOUBLE_EQ(packing.at("padding_packed").as_number(), 0);
  EXPECT_DOUBLE_EQ(packing.at("padding_alone").as_number(), 30.0 / 60);
  EXPECT_DOUBLE_EQ(packing.at("documents_a_row").as_number(), 2);
  EXPECT_EQ(packing.at("tokens_cut"), Json(2));
  const std::string text = stats({"a", "--seq", "10"}).out;
  EXPECT_THAT(text, HasSubstr("length      min 1, median 5, mean 5.3, 95 % 12, max 12\n"));
  EXPECT_THAT(text, HasSubstr("not packed  6 rows of 10, 50.0 % padding\n"));
  EXPECT_THAT(text, HasSubstr("packed      3 rows of 10, 2.0 documents a row, 0.0 % padding\n"));
  EXPECT_THAT(text, HasSubstr("cut         2 tokens beyond the ends of rows\n"));
  EXPECT_THAT(text, HasSubstr("  4 to 7   3"));
}

TEST_F(DataStats, CountRowsAndLossMasksThatLieBesideAnIndex) {
  write_index("a", {6, 3, 4, 11});
  sdk::PackedRowsWriter rows((folder_ / "a").string(), 13);
  rows.append(3);
  rows.append(1);
  rows.finish();
  write_bytes(folder_ / "a.loss", std::string("\x21\x00\xFF", 3));  // 2 of the first 16, and all of the last 8
  const Json found = json({"a"});
  EXPECT_EQ(found.at("tokens_in_loss"), Json(10));
  EXPECT_EQ(found.at("rows"), Json(2));
  EXPECT_DOUBLE_EQ(found.at("documents_a_row").as_number(), 2);
  EXPECT_DOUBLE_EQ(found.at("padding").as_number(), 2.0 / 26);
  EXPECT_THAT(stats({"a"}).out, HasSubstr("in the loss  10 (41.7 %)\n"));
  // Beside them a file whose documents are not in rows; of a folder neither rows nor masks are text.
  std::filesystem::create_directory(folder_ / "both");
  for (const char* file : {"a.idx", "a.bin", "a.rows", "a.loss"}) {
    std::filesystem::copy_file(folder_ / file, folder_ / (std::string("both/") + file));
  }
  write_index("both/b", {100, 100});
  const Json both = json({"both"});
  EXPECT_EQ(both.at("documents"), Json(6));
  EXPECT_EQ(both.at("rows"), Json(2));
  EXPECT_DOUBLE_EQ(both.at("documents_a_row").as_number(), 2);
  EXPECT_DOUBLE_EQ(both.at("padding").as_number(), 2.0 / 26);
  write_bytes(folder_ / "a.loss", "\x21");
  EXPECT_THAT(error({"a"}, 1), HasSubstr("a.loss: has 1 bytes, and a bit for each of the 24 tokens of a.bin takes 3"));
  std::filesystem::remove(folder_ / "a.loss");
  write_index("a", {6, 3, 4});
  EXPECT_THAT(error({"a"}, 1), HasSubstr("a.rows: has rows of 4 documents, and a.idx has 3"));
}

TEST_F(DataStats, CountConversationsByRoleBeforeTheyAreMade) {
  write_chats();
  const Json found = json({"chats.jsonl", "--tokenizer", "tok", "--seq", "16"});
  // "u:abcd;a:ef;" and "a:hij;"; "u:g;" has no turn of the assistant.
  EXPECT_EQ(found.at("documents"), Json(2));
  EXPECT_EQ(found.at("documents_without_label"), Json(1));
  EXPECT_EQ(found.at("tokens"), Json(18));
  EXPECT_EQ(found.at("tokens_in_loss"), Json(7));  // "ef;" and "hij;"
  EXPECT_EQ(found.at("tokens_by_role"), Json::parse(R"({"user": 4, "assistant": 5, "template": 9})"));
  EXPECT_EQ(found.at("packing").at("rows_packed"), Json(2));
  // What `data chat` makes of them has these counts.
  ASSERT_EQ(run_capstan(folder_, {"data", "chat", "chats.jsonl", "--tokenizer", "tok", "--out", "chats.idx"}).exit_code,
            0);
  const Json made = json({"chats.idx", "--seq", "16"});
  for (const char* key : {"documents", "tokens", "tokens_in_loss", "length", "packing"}) {
    EXPECT_EQ(made.at(key), found.at(key)) << key;
  }
}

TEST_F(DataStats, CountTokensOfTextWithATokenizerAndBytesWithout) {
  write_chats();
  Json pairs = test::byte_tokenizer();
  pairs["model"]["vocab"]["ab"] = 257;
  pairs["model"]["merges"] = Json::parse(R"([["a", "b"]])");
  write_bytes(folder_ / "pairs.json", pairs.dump());
  write_bytes(folder_ / "a.txt", "abab");
  write_bytes(folder_ / "b.jsonl", "{\"text\": \"xab\"}\n{\"text\": \"\"}\n");
  const Json bytes = json({"a.txt", "b.jsonl"});
  EXPECT_EQ(bytes.at("unit"), Json("byte"));
  EXPECT_EQ(bytes.at("documents"), Json(3));
  EXPECT_EQ(bytes.at("tokens"), Json(7));
  EXPECT_EQ(json({"a.txt", "--tokenizer", "pairs.json"}).at("tokens"), Json(2));
  EXPECT_EQ(json({"b.jsonl", "--tokenizer", "pairs.json"}).at("tokens"), Json(2));
}

TEST_F(DataStats, NameWhatIsWrong) {
  write_index("a", {3});
  write_bytes(folder_ / "a.txt", "abc");
  write_bytes(folder_ / "empty.jsonl", "\n");
  write_bytes(folder_ / "bad.jsonl", "{\"text\": \"a\"}\n{\"text\": [1]}\n");
  EXPECT_THAT(error({"a.txt", "a.idx"}, 2),
              HasSubstr("'a.txt' and 'a.idx' are text and tokens, which are not counted"));
  EXPECT_THAT(error({"empty.jsonl"}, 1), HasSubstr("the inputs hold no document."));
  EXPECT_THAT(error({"none.idx"}, 1), HasSubstr("none.idx"));
  EXPECT_THAT(
      error({"bad.jsonl"}, 1),
      HasSubstr("bad.jsonl:2: has no text under \"text\" but a value of type array. Name the member with --key."));
  EXPECT_THAT(error({"a", "--seq", "1"}, 2), HasSubstr("--seq: must be 2 or more, got 1."));
  EXPECT_THAT(error({"a.txt", "--chat-template", "t"}, 2),
              HasSubstr("--chat-template: counts conversations by their tokens. Name a --tokenizer as well."));
  // Not a record, as a text has none.
  write_bytes(folder_ / "a.txt.json", "[1]");
  EXPECT_EQ(json({"a.txt"}).at("documents"), Json(1));
}

}  // namespace
}  // namespace capstan::cli
