// `capstan data chat --pack`: documents share rows as a plain first fit has them, and no token is lost but those
// counted.

#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>

#include "capstan/sdk/packed_rows.hpp"
#include "core/text/json.hpp"
#include "tests/cli/data_chat_fixture.hpp"

namespace capstan::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Tokens = std::vector<std::int64_t>;

/// Texts of 0 to 79 letters.
std::vector<std::string> some_texts(std::size_t count) {
  std::vector<std::string> texts;
  std::uint32_t state = 7;
  for (std::size_t i = 0; i < count; ++i) {
    state = state * 1664525u + 1013904223u;
    std::string text(state >> 24 & 0xFF & ((state >> 16 & 1) != 0 ? 79 : 31), 'a');
    for (std::size_t k = 0; k < text.size(); ++k) text[k] = static_cast<char>('a' + (i + k) % 26);
    texts.push_back(std::move(text));
  }
  return texts;
}

Tokens tokens_of(const std::string& text) {
  Tokens tokens(text.begin(), text.end());
  tokens.push_back(256);
  return tokens;
}

/// First fit over sorted sizes, by looking at every row: documents of each row.
std::vector<std::vector<Tokens>> naive_rows(std::vector<Tokens> documents, std::size_t length) {
  std::stable_sort(documents.begin(), documents.end(),
                   [](const Tokens& a, const Tokens& b) { return a.size() > b.size(); });
  std::vector<std::vector<Tokens>> rows;
  std::vector<std::size_t> used;
  for (Tokens& document : documents) {
    std::size_t row = 0;
    while (row < rows.size() && used[row] + document.size() > length) ++row;
    if (row == rows.size()) {
      rows.emplace_back();
      used.push_back(0);
    }
    used[row] += document.size();
    rows[row].push_back(std::move(document));
  }
  return rows;
}

std::string text_rows(const std::vector<std::string>& texts) {
  std::string lines;
  for (const std::string& text : texts) lines += "{\"text\": \"" + text + "\"}\n";
  return lines;
}

class DataPack : public DataChat {
 protected:
  /// The documents of each row of NAME.rows.
  std::vector<std::vector<Tokens>> rows_of(const std::string& name) const {
    const sdk::IndexedRows documents((folder_ / name).string());
    const sdk::PackedRows rows((folder_ / name).string());
    EXPECT_EQ(rows.first_document(rows.rows()), documents.rows());
    std::vector<std::vector<Tokens>> all(static_cast<std::size_t>(rows.rows()));
    for (std::size_t row = 0; row < all.size(); ++row) {
      const auto number = static_cast<std::int64_t>(row);
      for (std::int64_t i = rows.first_document(number); i < rows.first_document(number + 1); ++i) {
        all[row].push_back(documents.row(i));
      }
    }
    return all;
  }
  ProcessResult pack(std::vector<std::string> more) const {
    more.insert(more.end(), {"--loss", "all", "--end-token", "<end>"});
    ProcessResult result = chat(more);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result;
  }
};

TEST_F(DataPack, FitsDocumentsIntoRowsAsALoopOverAllRowsDoesWindowByWindow) {
  constexpr std::size_t kLength = 48, kWindow = 10'000;
  const std::vector<std::string> texts = some_texts(10'700);
  write_rows(text_rows(texts));

  const ProcessResult result = pack({"--out", "packed.idx", "--pack", std::to_string(kLength)});

  std::vector<std::vector<Tokens>> wanted;
  std::vector<Tokens> window;
  std::int64_t cut = 0, lost = 0, empty = 0, kept = 0;
  std::size_t taken = 0;
  const auto end_window = [&] {
    const auto rows = naive_rows(std::exchange(window, {}), kLength);
    wanted.insert(wanted.end(), rows.begin(), rows.end());
  };
  for (const std::string& text : texts) {
    if (text.empty()) {
      ++empty;
      continue;
    }
    Tokens document = tokens_of(text);
    if (document.size() > kLength) {
      ++cut;
      lost += static_cast<std::int64_t>(document.size() - kLength);
      document.resize(kLength);
    }
    kept += static_cast<std::int64_t>(document.size());
    window.push_back(document);
    if (++taken % kWindow == 0) end_window();
  }
  end_window();
  ASSERT_GT(cut, 100);
  EXPECT_EQ(rows_of("packed"), wanted);
  const auto number = [](std::int64_t value) {
    std::string text = std::to_string(value);
    for (std::size_t at = text.size(); at > 3; at -= 3) text.insert(at - 3, ",");
    return text;
  };
  EXPECT_THAT(result.out,
              HasSubstr("packed.idx: " + number(static_cast<std::int64_t>(taken)) + " documents, " + number(kept) +
                        " tokens of uint16, in " + number(static_cast<std::int64_t>(wanted.size())) + " rows of 48, "));
  EXPECT_THAT(result.out, HasSubstr("; " + number(empty) + " rows without text left out; " + number(cut) +
                                    " documents of more than 48 tokens cut, which lost " + number(lost) + " tokens\n"));
  const Json record = Json::parse(read_bytes(folder_ / "packed.idx.json"));
  EXPECT_EQ(record.at("rows"), Json(static_cast<std::int64_t>(wanted.size())));
  EXPECT_EQ(record.at("row_length"), Json(48));
}

TEST_F(DataPack, DropsLongDocumentsWhereAsked) {
  write_rows(text_rows({"abcdefgh", "ab", "abcdefg", "c"}));
  const ProcessResult result = pack({"--out", "packed.idx", "--pack", "8", "--long", "drop"});
  EXPECT_EQ(result.out,
            "packed.idx: 3 documents, 13 tokens of uint16, in 2 rows of 8, 81.2 % full; 1 document of more than 8 "
            "tokens dropped, with 9 tokens\n");
  EXPECT_THAT(rows_of("packed"),
              ElementsAre(ElementsAre(tokens_of("abcdefg")), ElementsAre(tokens_of("ab"), tokens_of("c"))));
  EXPECT_THAT(error({"--out", "x.idx", "--long", "drop"}, 2),
              HasSubstr("--long: says what becomes of rows that are longer than --pack LENGTH, which is not given."));
  EXPECT_THAT(error({"--out", "x.idx", "--pack", "1"}, 2), HasSubstr("--pack: must be 2 to 2,147,483,647, got 1."));
}

TEST_F(DataPack, KeepsTheMaskBesideTheTokensAndCountsDocumentsThatWereCutBeforeTheAnswer) {
  write_rows(R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})"
             "\n"
             R"({"messages": [{"role": "user", "content": "abcdefghi"}, {"role": "assistant", "content": "b"}]})"
             "\n"
             R"({"messages": [{"role": "user", "content": "abc"}, {"role": "assistant", "content": "def"}]})"
             "\n"
             R"({"messages": [{"role": "user", "content": "a"}]})"
             "\n");
  const ProcessResult result = chat({"--out", "chats.idx", "--pack", "10"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out,
            "chats.idx: 2 documents, 18 tokens of uint16, 4 of them the assistant's, in 2 rows of 10, 90.0 % full; 1 "
            "conversation without a turn of the assistant left out; 2 documents of more than 10 tokens cut, which lost "
            "8 tokens; 1 document without a token that the loss counts left out, with 10 tokens\n");
  EXPECT_EQ(counted_text("chats"), "________de______b;");  // u:abc;a:de and u:a;a:b;
}

TEST_F(DataPack, RemovesTheRowsOfOlderTokens) {
  ASSERT_EQ(chat({"--out", "chats.idx", "--pack", "64"}).exit_code, 0);
  EXPECT_TRUE(std::filesystem::exists(folder_ / "chats.rows"));
  ASSERT_EQ(chat({"--out", "chats.idx", "--force"}).exit_code, 0);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "chats.rows"));
}

}  // namespace
}  // namespace capstan::cli
